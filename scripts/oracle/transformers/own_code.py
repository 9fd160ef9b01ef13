#!/usr/bin/env python3
"""Records what `architectures.py` records, of tiny models whose folders name published code, or that
`transformers` does not have.

    own_code.py [NAME...]        into fixtures/safetensors/NAME.json

The format is that of `architectures.py`. `jina-v3-own` and `xlm-roberta-fused-rank` are computed by the class of `transformers` that has the same
layers, from the same weights under its names, and so is `llama-embed`, by `LlamaModel` with `is_causal` false. JinaBert, nomic-embed-text v2 and
Maple are not in `transformers`: `jina_bert`, `nomic_moe` and `maple` are written here, one line per step of what the published code of these models
defines.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.numpy import save_file

from architectures import ENCODER, LLAMA3, OUT, POSITIONS, SIZES, TOKENS, VOCAB, size_of, values

WIDTH, INNER, LAYERS, HEADS = ENCODER["hidden_size"], ENCODER["intermediate_size"], ENCODER["num_hidden_layers"], ENCODER["num_attention_heads"]
Weights = dict[str, torch.Tensor]


def linear(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))


def norm(w: Weights, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | float) -> torch.Tensor:
    """Heads of `[heads, tokens, columns]` in both directions: `[tokens, heads * columns]`."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(1, (count, -1)).transpose(0, 1)


def slopes(count: int) -> torch.Tensor:
    """Those of ALiBi: powers of 2^(-8/n), and for other counts every second one of twice the power of two below."""
    def even(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    below = 1 << (count.bit_length() - 1)
    return torch.tensor(even(below) + even(2 * below)[::2][: count - below])


def jina_bert(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    w = {name.removeprefix("bert."): weight for name, weight in w.items()}
    eps, count, inner = config["layer_norm_eps"], config["num_attention_heads"], config["intermediate_size"]
    distance = (torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))[None]).abs()
    alibi = -slopes(count)[:, None, None] * distance
    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(w, "embeddings.LayerNorm", x, eps)
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        own = layer + "attention.self."
        q, k, v = (linear(w, own + part, x) for part in ("query", "key", "value"))
        is_code = layer + "layer_norm_1.weight" in w
        if is_code:
            q, k = norm(w, own + "layer_norm_q", q, eps), norm(w, own + "layer_norm_k", k, eps)
        out = linear(w, layer + "attention.output.dense", attend(heads(q, count), heads(k, count), heads(v, count), alibi))
        y = norm(w, layer + "attention.output.LayerNorm", out + x, eps)
        if is_code:
            y = norm(w, layer + "layer_norm_1", x + y, eps)
            up, gate = linear(w, layer + "mlp.up_gated_layer", y).split(inner, -1)
            x = norm(w, layer + "layer_norm_2", y + linear(w, layer + "mlp.down_layer", up * F.gelu(gate)), eps)
        else:
            gate, up = linear(w, layer + "mlp.gated_layers", y).split(inner, -1)
            x = norm(w, layer + "mlp.layernorm", linear(w, layer + "mlp.wo", F.gelu(gate) * up) + y, eps)
    if config["architectures"][0].endswith("ForSequenceClassification"):
        return linear(w, "classifier", torch.tanh(linear(w, "pooler.dense", x[0])))
    return x


def nomic_moe(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    eps, count, width = config["layer_norm_epsilon"], config["n_head"], config["n_embd"]
    half = width // count // 2
    angles = torch.arange(len(tokens))[:, None] / config["rotary_emb_base"] ** (torch.arange(half) / half)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(w, "emb_ln", x, eps)
    for i in range(config["n_layer"]):
        layer = f"encoder.layers.{i}."
        q, k, v = (heads(part, count) for part in linear(w, layer + "attn.Wqkv", x).split(width, -1))
        x = norm(w, layer + "norm1", linear(w, layer + "attn.out_proj", attend(rotated(q), rotated(k), v, 0.0)) + x, eps)
        if i % config["moe_every_n_layers"] == 1:
            share, chosen = linear(w, layer + "mlp.router.layer", x).softmax(-1).topk(config["moe_top_k"])
            up, down = (w[layer + f"mlp.experts.mlp.{part}"].view(config["num_experts"], -1, width) for part in ("w1", "w2"))
            out = [sum(s * (F.gelu(up[e] @ row) @ down[e]) for s, e in zip(*pair)) for row, pair in zip(x, zip(share, chosen))]
            out = torch.stack(out) + w[layer + "mlp.experts.bias"]
        else:
            out = linear(w, layer + "mlp.fc2", F.gelu(linear(w, layer + "mlp.fc1", x)))
        x = norm(w, layer + "norm2", out + x, eps)
    return x


def rms(w: Weights, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w[name + ".weight"]


def maple(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    eps, dim = config["rms_norm_eps"], config["head_dim"]
    count, kv_count = config["num_attention_heads"], config["num_key_value_heads"]
    half = int(dim * config["partial_rotary_factor"]) // 2
    angles = torch.arange(len(tokens))[:, None] / config["rope_theta"] ** (torch.arange(half) / half)
    distance = torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))[None]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x[..., :half], x[..., half : 2 * half]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), x[..., 2 * half :]], -1)

    x = w["model.word_embeddings.weight"][tokens]
    for i, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}."
        y = rms(w, layer + "input_layernorm", x, eps)
        q, k, v = (heads(linear(w, layer + f"self_attn.{part}_proj", y), n) for part, n in (("q", count), ("k", kv_count), ("v", kv_count)))
        q, k = rms(w, layer + "self_attn.q_norm", q, eps), rms(w, layer + "self_attn.k_norm", k, eps)
        is_hidden = distance < 0
        if kind == "sliding_attention":
            q, k = rotated(q), rotated(k)
            is_hidden |= distance >= config["sliding_window"]
        k, v = (part.repeat_interleave(count // kv_count, 0) for part in (k, v))
        x = x + linear(w, layer + "self_attn.o_proj", attend(q, k, v, torch.where(is_hidden, -torch.inf, 0.0)))
        y = rms(w, layer + "post_attention_layernorm", x, eps)
        share, chosen = linear(w, layer + "mlp.gate", y).softmax(-1).topk(config["num_experts_per_tok"])
        share = share / share.sum(-1, keepdim=True)

        def expert(e: int, row: torch.Tensor) -> torch.Tensor:
            gate, up, down = (w[layer + f"mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            return down @ (F.silu((gate @ row).clamp(max=7.0)) * (up @ row).clamp(-7.0, 7.0))

        x = x + torch.stack([sum(s * expert(int(e), row) for s, e in zip(*pair)) for row, pair in zip(y, zip(share, chosen))])
    return linear(w, "lm_head", rms(w, "model.norm", x, eps))


def by_transformers(class_name: str, config: transformers.PretrainedConfig, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """The rows or scores of a class of `transformers`."""
    auto = getattr(transformers, class_name)
    with tempfile.TemporaryDirectory() as folder:
        auto(config).save_pretrained(folder)
        arrays = {name: weight.numpy() for name, weight in weights.items()}
        save_file(arrays, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})
        model, report = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    with torch.no_grad():
        out = model.eval()(tokens[None])
    return (out.logits if "logits" in out else out.last_hidden_state)[0]


def jina_v3(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    rope = {"rope_type": "default", "rope_theta": config["rotary_emb_base"]}
    made = transformers.JinaEmbeddingsV3Config(**{**ENCODER, "pad_token_id": 1, "rope_parameters": rope})
    plain = {name: weight for name, weight in w.items() if "lora_" not in name}
    plain = {name.removeprefix("roberta.").replace(".parametrizations.weight.original", ".weight"): weight for name, weight in plain.items()}
    return by_transformers("JinaEmbeddingsV3Model", made, plain, tokens)


FUSED = [("emb_ln", "embeddings.LayerNorm"), ("encoder.layers", "encoder.layer"), ("mixer.out_proj", "attention.output.dense"),
         ("norm1", "attention.output.LayerNorm"), ("norm2", "output.LayerNorm"), ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")]


def xlm_roberta(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    made = transformers.XLMRobertaConfig(**{**ENCODER, "pad_token_id": 1, "type_vocab_size": 1, "num_labels": 3})
    plain: Weights = {}
    for name, weight in w.items():
        for old, new in FUSED:
            name = name.replace(old, new)
        if "mixer.Wqkv" in name:
            for part, rows in zip(("query", "key", "value"), weight.chunk(3)):
                plain[name.replace("mixer.Wqkv", f"attention.self.{part}")] = rows.contiguous()
        else:
            plain[name] = weight
    return by_transformers("XLMRobertaForSequenceClassification", made, plain, tokens)


def llama(config: dict, w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    return by_transformers("LlamaModel", transformers.LlamaConfig(**{**SIZES, "rope_parameters": LLAMA3, "is_causal": False}), w, tokens)


def per_layer(count: int, prefix: str, tensors: dict[str, list[int]]) -> dict[str, list[int]]:
    return {f"{prefix}{i}.{name}": shape for i in range(count) for name, shape in tensors.items()}


def biased(tensors: dict[str, list[int]]) -> dict[str, list[int]]:
    """Each tensor as a weight, with a bias."""
    return {f"{name}.{part}": shape if part == "weight" else shape[:1] for name, shape in tensors.items() for part in ("weight", "bias")}


def bert_tensors(width: int, types: int) -> dict[str, list[int]]:
    return {"embeddings.word_embeddings.weight": [VOCAB, width], "embeddings.token_type_embeddings.weight": [types, width]}


def jina_tensors(prefix: str, width: int, code: bool, head: dict[str, list[int]]) -> dict[str, list[int]]:
    square = [width, width]
    layer = biased({f"attention.self.{part}": square for part in ("query", "key", "value")})
    layer |= biased({"attention.output.dense": square, "attention.output.LayerNorm": [width]})
    if code:
        layer |= biased({"attention.self.layer_norm_q": [width], "attention.self.layer_norm_k": [width], "layer_norm_1": [width],
                         "layer_norm_2": [width], "mlp.down_layer": [width, INNER]})
        layer["mlp.up_gated_layer.weight"] = [2 * INNER, width]
    else:
        layer |= biased({"mlp.wo": [width, INNER], "mlp.layernorm": [width]})
        layer["mlp.gated_layers.weight"] = [2 * INNER, width]
    model = bert_tensors(width, 2) | biased({"embeddings.LayerNorm": [width], "pooler.dense": square}) | per_layer(LAYERS, "encoder.layer.", layer)
    return {prefix + name: shape for name, shape in model.items()} | head


def fused_tensors(own: bool) -> dict[str, list[int]]:
    """The tensors of code for FlashAttention; with adapters of two tasks if `own`, as parts of the weights."""
    linears = {"mixer.Wqkv": [3 * WIDTH, WIDTH], "mixer.out_proj": [WIDTH, WIDTH], "mlp.fc1": [INNER, WIDTH], "mlp.fc2": [WIDTH, INNER]}
    norms = biased({"norm1": [WIDTH], "norm2": [WIDTH]})
    plain = bert_tensors(WIDTH, 1) | biased({"emb_ln": [WIDTH]}) | per_layer(LAYERS, "encoder.layers.", biased(linears) | norms)
    if not own:
        return {"roberta." + name: shape for name, shape in plain.items()}
    plain |= biased({"pooler.dense": [WIDTH, WIDTH]})
    tensors: dict[str, list[int]] = {}
    for name, shape in plain.items():
        stem = "roberta." + name.removesuffix(".weight")
        if len(shape) == 1:
            tensors["roberta." + name] = shape
            continue
        tensors[f"{stem}.parametrizations.weight.original"] = shape
        tensors[f"{stem}.parametrizations.weight.0.lora_A"] = [2, 4, shape[1]]
        tensors[f"{stem}.parametrizations.weight.0.lora_B"] = [2, shape[0], 4]
    return tensors


def nomic_tensors() -> dict[str, list[int]]:
    model = bert_tensors(WIDTH, 1) | biased({"emb_ln": [WIDTH]})
    for i in range(4):
        layer = biased({"attn.Wqkv": [3 * WIDTH, WIDTH], "attn.out_proj": [WIDTH, WIDTH], "norm1": [WIDTH], "norm2": [WIDTH]})
        if i % 2 == 1:
            layer |= {"mlp.router.layer.weight": [4, WIDTH], "mlp.experts.bias": [WIDTH]}
            layer |= {f"mlp.experts.mlp.{part}": [4 * INNER, WIDTH] for part in ("w1", "w2")}
        else:
            layer |= biased({"mlp.fc1": [INNER, WIDTH], "mlp.fc2": [WIDTH, INNER]})
        model |= {f"encoder.layers.{i}.{name}": shape for name, shape in layer.items()}
    return model


def llama_tensors() -> dict[str, list[int]]:
    half = SIZES["num_key_value_heads"] * WIDTH // HEADS
    shapes = {"self_attn.q_proj": [WIDTH, WIDTH], "self_attn.k_proj": [half, WIDTH], "self_attn.v_proj": [half, WIDTH], "self_attn.o_proj": [WIDTH, WIDTH],
              "mlp.gate_proj": [INNER, WIDTH], "mlp.up_proj": [INNER, WIDTH], "mlp.down_proj": [WIDTH, INNER], "input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH]}
    layers = per_layer(LAYERS, "layers.", {f"{name}.weight": shape for name, shape in shapes.items()})
    return {"embed_tokens.weight": [VOCAB, WIDTH], "norm.weight": [WIDTH]} | layers


def maple_tensors() -> dict[str, list[int]]:
    shapes = {"input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH], "self_attn.q_norm": [32], "self_attn.k_norm": [32],
              "self_attn.q_proj": [128, WIDTH], "self_attn.k_proj": [64, WIDTH], "self_attn.v_proj": [64, WIDTH], "self_attn.o_proj": [WIDTH, 128], "mlp.gate": [4, WIDTH]}
    for e in range(4):
        shapes |= {f"mlp.experts.{e}.gate_proj": [32, WIDTH], f"mlp.experts.{e}.up_proj": [32, WIDTH], f"mlp.experts.{e}.down_proj": [WIDTH, 32]}
    layers = per_layer(4, "model.layers.", {f"{name}.weight": shape for name, shape in shapes.items()})
    return {"model.word_embeddings.weight": [VOCAB, WIDTH], "model.norm.weight": [WIDTH], "lm_head.weight": [VOCAB, WIDTH]} | layers


JINA = {**ENCODER, "model_type": "bert", "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "feed_forward_type": "geglu",
        "position_embedding_type": "alibi", "emb_pooler": "mean", "attn_implementation": "torch"}
XLM = {**ENCODER, "model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "use_flash_attn": True}
NOMIC = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "gelu", "vocab_size": VOCAB, "n_embd": WIDTH, "n_head": HEADS,
         "n_inner": INNER, "n_layer": 4, "n_positions": 64, "max_trained_positions": 64, "type_vocab_size": 1, "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10000.0,
         "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "prenorm": False,
         "use_rms_norm": False, "causal": False, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "num_experts": 4, "moe_top_k": 2,
         "moe_every_n_layers": 2, "moe_normalize_expert_weights": False, "expert_choice_router": False, "num_shared_experts": 0, "ffn_div": 1, "pad_token_id": 1}
MODELS = {
    "jina-bert": (jina_bert, {**JINA, "architectures": ["JinaBertForMaskedLM"]}, jina_tensors("bert.", WIDTH, False, {})),
    # six heads: slopes between those of a power of two
    "jina-bert-code": (jina_bert, {**JINA, "architectures": ["JinaBertModel"], "hidden_size": 96, "num_attention_heads": 6}, jina_tensors("", 96, True, {})),
    "jina-bert-rank": (jina_bert, {**JINA, "architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
                       jina_tensors("bert.", WIDTH, False, biased({"classifier": [1, WIDTH]}))),
    "jina-v3-own": (jina_v3, {**XLM, "architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary", "rotary_emb_base": 20000.0,
                              "lora_adaptations": ["retrieval.query", "retrieval.passage"], "truncate_dim": None, "emb_pooler": None}, fused_tensors(True)),
    "xlm-roberta-fused-rank": (xlm_roberta, {**XLM, "architectures": ["XLMRobertaForSequenceClassification"], "position_embedding_type": "absolute",
                                             "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}},
                               fused_tensors(False) | {"roberta.embeddings.position_embeddings.weight": [64, WIDTH]}
                               | biased({"classifier.dense": [WIDTH, WIDTH], "classifier.out_proj": [3, WIDTH]})),
    "nomic-bert-moe": (nomic_moe, NOMIC, nomic_tensors()),
    "maple": (maple, {**SIZES, "architectures": ["MapleForCausalLM"], "model_type": "maple", "hidden_act": "silu", "rms_norm_eps": 1e-6, "head_dim": 32,
                      "num_hidden_layers": 4, "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8,
                      "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_scaling": None, "num_experts": 4, "num_experts_per_tok": 2,
                      "moe_intermediate_size": 32, "norm_topk_prob": True, "use_bias": False, "tie_word_embeddings": False}, maple_tensors()),
    "llama-embed": (llama, {**SIZES, "architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec", "rms_norm_eps": 1e-6,
                            "rope_parameters": LLAMA3, "pooling": "avg"}, llama_tensors()),
}


def record(name: str) -> None:
    reference, config, shapes = MODELS[name]
    tensors, weights = [], {}
    for key, shape in sorted(shapes.items()):
        gain, offset = size_of(key, shape, False)
        tensors.append({"name": key, "shape": shape, "gain": gain, "offset": offset})
        weights[key] = torch.from_numpy(values(key, shape, gain, offset))
    with torch.no_grad():
        rows = reference(config, weights, torch.tensor(TOKENS)).float().numpy()
    kept = [[float(f"{x:.7g}") for x in row] for row in (rows[None] if rows.ndim == 1 else rows[POSITIONS])]
    by = f"transformers {transformers.__version__}" if reference not in (jina_bert, nomic_moe, maple) else f"torch {torch.__version__}, {reference.__name__} of own_code.py"
    fixture = {"reference": by, "config": config, "tensors": tensors, "tokens": TOKENS, "positions": POSITIONS, "logits": kept}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: {len(tensors)} tensors, values up to {np.abs(rows).max():.2f}")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        record(chosen)
