#!/usr/bin/env python3
"""Records the logits of `transformers` with adapters of PEFT, on the tiny models of `architectures.py`.

    adapters.py [NAME...]        into fixtures/adapters/NAME.json

A fixture names its base model (fixtures/safetensors), and has the `adapter_config.json` of each
adapter, the names and shapes of its tensors as PEFT saves them, the scale with which it is used, and
some logits with all of them. The values of tensors are made as in `architectures.py`. Needs torch,
transformers, safetensors and peft from PyPI.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from architectures import OUT as BASES, POSITIONS, TOKENS, values

OUT = BASES.parent / "adapters"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# the base model, and per adapter: settings of LoraConfig, and the scale with which it is used
ADAPTERS = {
    "llama": ("llama", [({"r": 4, "lora_alpha": 8, "target_modules": ALL}, 1.0)]),
    "llama-rslora": ("llama", [({"r": 6, "lora_alpha": 5, "use_rslora": True, "target_modules": ["q_proj", "k_proj", "lm_head"]}, 1.0)]),
    "llama-two": ("llama", [({"r": 3, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}, 0.5),
                            ({"r": 8, "lora_alpha": 8, "target_modules": ["k_proj", "v_proj", "down_proj"]}, -1.5)]),
    "qwen3": ("qwen3", [({"r": 4, "lora_alpha": 6, "target_modules": ALL, "rank_pattern": {"v_proj": 9},
                          "alpha_pattern": {"v_proj": 12, "layers.1.mlp.up_proj": 3}}, 1.0)]),
    "qwen2": ("qwen2", [({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj", "lm_head"]}, 1.0)]),
    "phi3": ("phi3", [({"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}, 1.0)]),
    "gemma3": ("gemma3", [({"r": 4, "lora_alpha": 8, "target_modules": ALL}, 1.0)]),
}


def base_folder(name: str, folder: Path) -> None:
    fixture = json.loads((BASES / f"{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(fixture["config"]))
    made = {t["name"]: values(t["name"], t["shape"], t["gain"], t["offset"]) for t in fixture["tensors"]}
    save_file(made, str(folder / "model.safetensors"), metadata={"format": "pt"})


def adapter_folder(base: Path, folder: Path, index: int, settings: dict) -> dict:
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    peft.get_peft_model(model, config).save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors, made = [], {}
    with safe_open(str(folder / "adapter_model.safetensors"), "numpy") as file:
        for key in sorted(file.keys()):
            if ".lora_" not in key:
                continue  # a head that shares the embedding table is saved with it, unchanged
            shape, seed = list(file.get_slice(key).get_shape()), f"{index} {key}"
            tensors.append({"name": key, "shape": shape, "seed": seed, "gain": 0.25, "offset": 0.0})
            made[key] = values(seed, shape, 0.25, 0.0)
    save_file(made, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    return {"config": config, "tensors": tensors}


def record(name: str) -> None:
    base_name, adapters = ADAPTERS[name]
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        base.mkdir()
        base_folder(base_name, base)
        recorded = []
        for i, (settings, scale) in enumerate(adapters):
            made = adapter_folder(base, Path(folder) / str(i), i, settings)
            recorded.append({**made, "scale": scale})
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        plain = model(torch.tensor([TOKENS]), use_cache=False).logits[0].detach()
        model = peft.PeftModel.from_pretrained(model, Path(folder) / "0", adapter_name="a0")
        for i in range(1, len(adapters)):
            model.load_adapter(Path(folder) / str(i), adapter_name=f"a{i}")
        model.base_model.set_adapter([f"a{i}" for i in range(len(adapters))])
        for i, (_, scale) in enumerate(adapters):
            for module in model.modules():
                if isinstance(module, peft.tuners.lora.LoraLayer):
                    if f"a{i}" in module.scaling:
                        module.scaling[f"a{i}"] *= scale
        with torch.no_grad():
            logits = model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0].float().numpy()
    change = abs(logits - plain.numpy()).max()
    rows = [[float(f"{x:.7g}") for x in logits[p]] for p in POSITIONS]
    fixture = {"peft": peft.__version__, "transformers": transformers.__version__, "base": base_name, "adapters": recorded,
               "tokens": TOKENS, "positions": POSITIONS, "logits": rows}
    OUT.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: logits up to {abs(logits).max():.2f}, changed by up to {change:.2f}")


def main() -> None:
    for name in sys.argv[1:] or ADAPTERS:
        record(name)


if __name__ == "__main__":
    main()
