#!/usr/bin/env python3
"""Records the logits, rows of tokens or scores of `transformers` for tiny models of every architecture that
safetensors folders may have.

    architectures.py [NAME...]        into fixtures/safetensors/NAME.json

A fixture has the `config.json`, the names and shapes of the tensors as `transformers` saves them, and some
logits: those of some positions, of an encoder its rows of these tokens, of a classifier its scores. The
weights are not stored: value i of a tensor is `offset + gain * u`, where u in [-1, 1) is made of the upper 24
bits of splitmix64(fnv1a(name) + i). Needs torch, transformers and safetensors from PyPI.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "safetensors"
TOKENS = [5, 17, 99, 3, 64, 64, 120, 7, 31, 8, 2, 45, 90, 11, 76, 23, 101, 54, 12, 88, 6, 70, 33, 29]
POSITIONS = [0, 9, 23]
VOCAB = 128

# sizes that all decoders have
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [1.0 + 0.3 * i for i in range(8)],
        "short_factor": [1.0 + 0.1 * i for i in range(8)], "original_max_position_embeddings": 512}
GRANITE_MAMBA = {
    "num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "attention"], "shared_intermediate_size": 48, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "embedding_multiplier": 2.0, "residual_multiplier": 0.7,
    "attention_multiplier": 0.3, "logits_scaling": 3.0}
NEMOTRON = {"head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}
MODELS = {
    "llama": ("LlamaConfig", {"rope_parameters": LLAMA3, "attention_bias": True}),
    "mistral": ("MistralConfig", {"head_dim": 24, "sliding_window": None}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_parameters": YARN}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
    "phi3": ("Phi3Config", {"rope_parameters": LONG, "original_max_position_embeddings": 512, "max_position_embeddings": 1024}),
    "phi4": ("Phi3Config", {"partial_rotary_factor": 0.5}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 8, "num_hidden_layers": 5}),
    "exaone4": ("Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "glm4": ("Glm4Config", {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True}),
    "seed-oss": ("SeedOssConfig", {"head_dim": 16}),
    "hunyuan": ("HunYuanDenseV1Config", {"head_dim": 16}),
    "ernie": ("Ernie4_5Config", {"head_dim": 16}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5}),
    "granite": ("GraniteConfig", {"embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.3, "logits_scaling": 3.0}),
    "qwen3moe": ("Qwen3MoeConfig", {"head_dim": 32, **EXPERTS, "norm_topk_prob": True}),
    "granitemoe": ("GraniteMoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 2.0, "logits_scaling": 3.0, "attention_multiplier": 0.3}),
    "glm4moe": ("Glm4MoeConfig", {"head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5}),
    "gpt-oss": ("GptOssConfig", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "num_hidden_layers": 4}),
    "arcee": ("ArceeConfig", {"head_dim": 16}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": None}),
    "stablelm": ("StableLmConfig", {"use_qkv_bias": True, "partial_rotary_factor": 0.25}),
    "olmoe": ("OlmoeConfig", {**EXPERTS, "intermediate_size": 32, "norm_topk_prob": False}),
    "minimax-m2": ("MiniMaxM2Config", {"head_dim": 32, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16}),
    "hunyuan-moe": ("HunYuanMoEV1Config", {"head_dim": 16, "num_experts": 4, "moe_topk": 2, "intermediate_size": 32}),
    "ernie-moe": ("Ernie4_5_MoeConfig", {"head_dim": 16, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1}),
    "exaone-moe": ("ExaoneMoeConfig", {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 8, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5}),
    "mellum": ("MellumConfig", {"head_dim": 16, "num_hidden_layers": 5, "sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"], **EXPERTS}),
    "hy-v3": ("HYV3Config", {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1, "first_k_dense_replace": 1, "router_scaling_factor": 2.0}),
    "cohere": ("CohereConfig", {"logit_scale": 0.4, "use_qk_norm": False}),
    "cohere2": ("Cohere2Config", {"num_hidden_layers": 5, "sliding_window": 8, "logit_scale": 0.4}),
    "afmoe": ("AfmoeConfig", {"head_dim": 24, "num_hidden_layers": 5, "sliding_window": 8, **EXPERTS, "num_shared_experts": 2, "num_dense_layers": 1, "route_scale": 1.8, "mup_enabled": True}),
    "jais2": ("Jais2Config", {"head_dim": 16}),
    "solar-open": ("SolarOpenConfig", {"head_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "routed_scaling_factor": 1.5}),
    "granite-swa": ("GraniteSWAConfig", {"num_hidden_layers": 5, "sliding_window": 8, "layer_rope_theta": [0, 10000.0, 10000.0, 10000.0, 0], "embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.3, "logits_scaling": 3.0, "tie_word_embeddings": False}),
    "granitemoe-swa": ("GraniteMoeSWAConfig", {"num_hidden_layers": 5, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48, "attention_multiplier": 0.3, "logits_scaling": 3.0}),
    "mimo2": ("MiMoV2FlashConfig", {"head_dim": 24, "v_head_dim": 16, "num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "attention_value_scale": 0.6, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.334}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.334}}}),
    "flint": ("FlintConfig", {"head_dim": 24, "num_hidden_layers": 6, "sliding_window": 8, **EXPERTS, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0, 1]}),
    "ministral3": ("Ministral3Config", {"head_dim": 16, "sliding_window": None}),
    "bitnet": ("BitNetConfig", {"hidden_act": "relu2"}),
    "deepseek2": ("DeepseekV2Config", {"q_lora_rank": None, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "num_key_value_heads": 4}),
    "deepseek3": ("DeepseekV3Config", {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4}),
    "qwen35": ("Qwen3_5TextConfig", {"head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}),
    "qwen35moe": ("Qwen3_5MoeTextConfig", {"head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, **EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3next": ("Qwen3NextConfig", {"head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, **EXPERTS, "shared_expert_intermediate_size": 48}),
    "lfm2": ("Lfm2Config", {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2MoeConfig", {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"], **EXPERTS, "num_dense_layers": 1}),
    # one group: of several, transformers normalises all together, and the published code each alone
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2, "num_hidden_layers": 2}),
    "gemma4moe": ("Gemma4TextConfig", {"head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "num_hidden_layers": 6, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}),
    "granite-hybrid": ("GraniteMoeHybridConfig", {**GRANITE_MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite-hybrid-dense": ("GraniteMoeHybridConfig", {**GRANITE_MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}),
    "falcon-h1": ("FalconH1Config", {
        "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.7,
        "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.9, "key_multiplier": 0.6, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.8,
        "mlp_multipliers": [0.9, 1.3], "ssm_multipliers": [0.7, 1.1, 0.8, 1.2, 0.9]}),
    "nemotron-h": ("NemotronHConfig", {**NEMOTRON, "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"]}),
    "nemotron-h-moe": ("NemotronHConfig", {**NEMOTRON, "layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 1.5}),
    "gemma4": ("Gemma4TextConfig", {"head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "num_hidden_layers": 6, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
}
# models of a class that no AutoModelForCausalLM gives; those of images are saved with their towers
OWN_CLASS = {
    "mistral4": ("Mistral4Config", "Mistral4ForCausalLM", {**SIZES, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "num_key_value_heads": 4, "rope_parameters": {**YARN, "factor": 8.0, "original_max_position_embeddings": 8, "beta_fast": 24.0, "beta_slow": 1.5, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}}),
    "qwen3vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", {
        "text_config": {**SIZES, "head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [24, 20, 20], "mrope_interleaved": True}},
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4, "num_position_embeddings": 16,
                          "deepstack_visual_indexes": [0]},
        "vision_start_token_id": 124, "vision_end_token_id": 125, "image_token_id": 126, "video_token_id": 127}),
    "muse-glimmer": ("MuseGlimmerConfig", "MuseGlimmerForConditionalGeneration", {
        "text_config": {**SIZES, "head_dim": 24, "num_hidden_layers": 5, "sliding_window": 8, "final_logit_softcapping": 5.0, "qk_scale_factor": 1.7, "output_multiplier": 0.6, "post_norm_eps": 0.25, "rms_norm_eps": 0.125},
        "vision_config": {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4},
        "image_token_id": 126, "video_token_id": 127, "out_hidden_size": 128, "projector_hidden_size": 32}),
}
# sizes of encoders, and their classes
ENCODER = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
           "max_position_embeddings": 64, "pad_token_id": 0}
ENCODERS = {
    "bert": ("BertConfig", "BertModel", {}),
    "bert-rank": ("BertConfig", "BertForSequenceClassification", {"num_labels": 1}),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta-rank": ("XLMRobertaConfig", "XLMRobertaForSequenceClassification", {"pad_token_id": 1, "type_vocab_size": 1, "num_labels": 3}),
    "camembert": ("CamembertConfig", "CamembertModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4}),
    "nomic-bert": ("NomicBertConfig", "NomicBertModel", {}),
    "jina-v3": ("JinaEmbeddingsV3Config", "JinaEmbeddingsV3Model", {"pad_token_id": 1}),
    "modern-bert": ("ModernBertConfig", "ModernBertModel", {"local_attention": 8, "num_hidden_layers": 4}),
    "modern-bert-rank": ("ModernBertConfig", "ModernBertForSequenceClassification", {"local_attention": 8, "num_labels": 1, "classifier_pooling": "mean"}),
    "modern-bert-rank-cls": ("ModernBertConfig", "ModernBertForSequenceClassification", {"local_attention": 8, "num_labels": 1, "classifier_pooling": "cls"}),
    "eurobert": ("EuroBertConfig", "EuroBertModel", {"num_key_value_heads": 2}),
    "gemma-embedding": ("Gemma3TextConfig", "Gemma3TextModel", {"head_dim": 16, "num_key_value_heads": 2, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7, "use_bidirectional_attention": True}),
}


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def values(name: str, shape: list[int], gain: float, offset: float) -> np.ndarray:
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.uint64(fnv1a(name)) + np.arange(count, dtype=np.uint64)
        x = x * np.uint64(1) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    unit = (x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    return (np.float32(offset) + np.float32(gain) * unit).reshape(shape)


def size_of(name: str, shape: list[int], plus_one: bool) -> tuple[float, float]:
    """Gain and offset of a tensor: sizes at which every part of a layer matters."""
    if ("norm" in name.lower() or "emb_ln" in name) and len(shape) == 1 and not name.endswith(".bias"):
        return 0.25, 0.0 if plus_one else 1.0
    if name.endswith("A_log"):
        return 0.5, 0.0
    if name.endswith(("dt_bias", ".D")):
        return 0.25, 0.5
    if len(shape) == 1:
        return 0.125, 0.0
    if "embed" in name:
        return 1.0, 0.0
    if "conv" in name:
        return 0.5, 0.0
    return float(np.float32(1.5 / np.sqrt(shape[-1]))), 0.0


def record(name: str) -> None:
    torch.manual_seed(0)
    if name in ENCODERS:
        config_name, class_name, more = ENCODERS[name]
        sizes = ENCODER if config_name != "DistilBertConfig" else {key: ENCODER[key] for key in ("vocab_size", "max_position_embeddings", "pad_token_id")}
        config = getattr(transformers, config_name)(**{**sizes, **more})
        auto = getattr(transformers, class_name)
        model = auto(config).float().eval()
    elif name in OWN_CLASS:
        config_name, class_name, parts = OWN_CLASS[name]
        auto = getattr(transformers, class_name)
        model = auto(getattr(transformers, config_name)(**parts)).float().eval()
    else:
        config_name, more = MODELS[name]
        config = getattr(transformers, config_name)(**{**SIZES, **more})
        auto = transformers.AutoModelForCausalLM
        model = auto.from_config(config).float().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config_json = json.loads((Path(folder) / "config.json").read_text())
        plus_one = name.startswith("gemma2") or name.startswith("gemma3") or name == "gemma-embedding" or name.startswith("qwen35") or name == "qwen3next"
        tensors, made = [], {}
        with safe_open(str(Path(folder) / "model.safetensors"), "numpy") as file:
            for key in sorted(file.keys()):
                shape = list(file.get_slice(key).get_shape())
                centred = plus_one and "linear_attn.norm" not in key or name == "muse-glimmer" and key.endswith("layernorm.weight")
                gain, offset = size_of(key, shape, centred)
                tensors.append({"name": key, "shape": shape, "gain": gain, "offset": offset})
                made[key] = values(key, shape, gain, offset)
        save_file(made, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            out = model(torch.tensor([TOKENS]), **({} if name in ENCODERS else {"use_cache": False}))
        logits = (out.logits if "logits" in out else out.last_hidden_state)[0].float().numpy()
    rows = [[float(f"{x:.7g}") for x in row] for row in (logits[None] if logits.ndim == 1 else logits[POSITIONS])]
    fixture = {"transformers": transformers.__version__, "config": config_json, "tensors": tensors, "tokens": TOKENS,
               "positions": POSITIONS, "logits": rows}
    OUT.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: {len(tensors)} tensors, logits up to {np.abs(logits).max():.2f}")


def main() -> None:
    for name in sys.argv[1:] or [*MODELS, *OWN_CLASS, *ENCODERS]:
        record(name)


if __name__ == "__main__":
    main()
