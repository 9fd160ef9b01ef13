#!/usr/bin/env python3
"""Records the logits of routers that `transformers` computes in f64 for small random models with experts.

    routers.py                       into fixtures/routers/NAME.json
    routers.py --near NAME SEED...   prints the smallest gaps of these seeds, to choose one with near ties

Weights are made as in `architectures.py`, from the seed and the name of a tensor. A choice of experts
depends on everything before it, so all of the model is computed in f64: `transformers` converts some values
to f32 whatever the model's dtype is, which is replaced here. The gap of a token is that between the last
expert that is chosen and the next one, in parts of the standard deviation of a layer's logits. Needs torch,
transformers and safetensors from PyPI.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from architectures import size_of, values

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "routers"
VOCAB, POSITIONS, USED = 128, 64, 2
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": USED, "moe_intermediate_size": 48}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": USED}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": USED, "moe_intermediate_size": 48, "first_k_dense_replace": 1}
# class, sizes, seed: one with near ties
MODELS = {
    "gpt-oss": ("GptOssConfig", {"head_dim": 24, **LOCAL, "sliding_window": 16}, 17),
    "glm4moe": ("Glm4MoeConfig", {"head_dim": 24, **ROUTED, "use_qk_norm": True, "attention_bias": True}, 22),
    "mixtral": ("MixtralConfig", {**LOCAL, "sliding_window": None}, 3),
    "qwen3moe": ("Qwen3MoeConfig", {"head_dim": 32, **EXPERTS, "norm_topk_prob": True}, 1),
    "granitemoe": ("GraniteMoeConfig", {**LOCAL, "attention_multiplier": 0.2}, 3),
    "deepseek2": ("DeepseekV2Config", {
        **ROUTED, "q_lora_rank": None, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "num_key_value_heads": 4}, 1),
}


class InF64(types.ModuleType):
    """torch, in which f32 is f64."""

    def __getattr__(self, name: str) -> object:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


def in_f64(model: torch.nn.Module, tokens: list[int]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """The logits of the model and of its routers, by layer."""
    found: dict[int, np.ndarray] = {}

    def observe(name: str):
        layer = int(re.search(r"layers\.(\d+)\.", name).group(1))

        def hook(_module: object, _inputs: object, output: object) -> None:
            found[layer] = (output[0] if isinstance(output, tuple) else output).double().numpy()

        return hook

    kinds = ("router", "gate", "gating")
    for name, module in model.named_modules():
        if type(module).__name__.lower().endswith(kinds):
            module.register_forward_hook(observe(name))
    places = [module for name, module in sys.modules.items() if name.startswith("transformers.") and vars(module).get("torch") is torch]
    to_float = torch.Tensor.float
    try:
        torch.Tensor.float = torch.Tensor.double
        for place in places:
            place.torch = InF64("torch")
        with torch.no_grad():
            logits = model.double()(torch.tensor([tokens]), use_cache=False).logits[0]
    finally:
        torch.Tensor.float = to_float
        for place in places:
            place.torch = torch
    assert logits.dtype == torch.float64 and found
    return logits.numpy(), found


def gaps(logits: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Of each token, in standard deviations of the logits; with a bias on the sigmoids that choose, for the
    largest slope of a sigmoid."""
    scores = logits if bias is None else 4 * (1 / (1 + np.exp(-logits)) + bias)
    best = -np.sort(-scores, axis=-1)
    return (best[:, USED - 1] - best[:, USED]) / logits.std()


def compute(name: str, seed: int) -> tuple[dict, list[dict], list[int], np.ndarray, dict[int, np.ndarray], list[np.ndarray]]:
    class_name, more, _ = MODELS[name]
    config = getattr(transformers, class_name)(**{**SIZES, **more})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config_json = json.loads((Path(folder) / "config.json").read_text())
        tensors, made = [], {}
        with safe_open(str(Path(folder) / "model.safetensors"), "numpy") as file:
            for key in sorted(file.keys()):
                shape = list(file.get_slice(key).get_shape())
                gain, offset = size_of(key, shape, False)
                tensors.append({"name": key, "shape": shape, "gain": gain, "offset": offset, "seed": f"{seed}/{key}"})
                made[key] = values(f"{seed}/{key}", shape, gain, offset)
        save_file(made, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    tokens = np.random.default_rng(seed).integers(3, VOCAB, POSITIONS).tolist()
    logits, routers = in_f64(model, tokens)
    biases = {key: value for key, value in made.items() if key.endswith("e_score_correction_bias")}
    bias = [next((value for key, value in biases.items() if f".{layer}." in key), None) for layer in sorted(routers)]
    return config_json, tensors, tokens, logits, routers, [gaps(routers[layer], b) for layer, b in zip(sorted(routers), bias)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--near", nargs="+", metavar=("NAME", "SEED"))
    near = arguments.parse_args().near
    if near:
        for seed in near[1:]:
            smallest = np.sort(np.concatenate(compute(near[0], int(seed))[-1]))[:3]
            print(near[0], seed, *(f"{gap:.1e}" for gap in smallest), flush=True)
        return
    OUT.mkdir(parents=True, exist_ok=True)
    for name, (_, _, seed) in MODELS.items():
        config, tensors, tokens, logits, routers, each = compute(name, seed)
        short = lambda rows: [[float(f"{x:.9g}") for x in row] for row in rows]
        layers = [{"layer": layer, "gaps": [float(f"{gap:.3g}") for gap in gap_of], "logits": short(routers[layer])}
                  for layer, gap_of in zip(sorted(routers), each)]
        fixture = {"transformers": transformers.__version__, "config": config, "tensors": tensors, "tokens": tokens,
                   "routers": layers, "positions": [POSITIONS - 1], "logits": short(logits[-1:])}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
        (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
        print(f"{name}: smallest gap {np.concatenate(each).min():.1e}")


if __name__ == "__main__":
    main()
