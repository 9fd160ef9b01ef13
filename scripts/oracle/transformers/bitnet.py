#!/usr/bin/env python3
"""Records the results of `transformers` for a GGUF file of BitNet b1.58.

llama.cpp does not have its graph (squared ReLU).

    bitnet.py tiny-bitnet-b1.58-tq2_0.gguf --tokens fixtures/llama/tiny-bitnet-q8_0-exact.json --positions 24 --top 16

The weights are decoded to f32 and loaded into BitNetForCausalLM: sub-norms, squared ReLU, rotation of halves
of a head. Token ids are those of another fixture with the same vocabulary. The fixture has the format of
llama/models.py, as exact arithmetic, and goes to fixtures/transformers/NAME-exact.json. Needs torch,
transformers and gguf from PyPI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "llama"))
from models import FILE_LIMIT, laid_out

REPOSITORY = Path(__file__).resolve().parents[3]
# names of GGUF and of transformers, of a model and of each of its layers
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm", "attn_sub_norm": "self_attn.attn_sub_norm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_sub_norm": "mlp.ffn_sub_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def renamed(name: str) -> str:
    """`blk.0.attn_q.weight` as `model.layers.0.self_attn.q_proj.weight`; a tensor
    without a counterpart is an error."""
    part = name.removesuffix(".weight")
    if part in OUTER:
        return f"{OUTER[part]}.weight"
    _, layer, part = part.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def load(path: Path) -> transformers.PreTrainedModel:
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    key = lambda name: reader.fields[f"{arch}.{name}"].contents()
    weights = {renamed(t.name): torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    config = transformers.BitNetConfig(
        vocab_size=len(weights["model.embed_tokens.weight"]), hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"), num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"), max_position_embeddings=key("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")}, bos_token_id=None, eos_token_id=None)
    model = transformers.BitNetForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict(weights)  # refuses missing and other names and shapes
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=Path, required=True, help="fixture whose texts and token ids are used")
    parser.add_argument("--positions", type=int, default=24)
    parser.add_argument("--top", type=int, default=16)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "fixtures" / "transformers")
    args = parser.parse_args()
    model, texts = load(args.model), []
    for text in json.loads(args.tokens.read_text())["texts"]:
        ids = text["tokens"]
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        best = logp[:args.positions].topk(args.top)
        texts.append({
            "name": text["name"], "text": text["text"], "tokens": ids,
            "next": [round(logp[i, id].item(), 4) for i, id in enumerate(ids[1:])],
            "top": [[ids, [round(p, 4) for p in logps]] for ids, logps in zip(best.indices.tolist(), best.values.tolist())],
        })
    fixture = {
        "model": args.model.name, "sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "oracle": {"package": f"transformers@{transformers.__version__}", "version": f"torch {torch.__version__}", "weights": "f32"},
        "n_vocab": logp.shape[-1], "add_bos": True, "texts": texts, "greedy": [],
    }
    written = laid_out(fixture)
    if len(written) > FILE_LIMIT:
        raise SystemExit(f"the fixture would be {len(written):,} bytes, {FILE_LIMIT:,} is the limit: give --positions")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.model.stem}-exact.json").write_text(written)
    print(f"{args.model.stem}-exact: {len(written):,} bytes")


if __name__ == "__main__":
    main()
