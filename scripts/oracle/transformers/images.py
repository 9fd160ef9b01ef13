#!/usr/bin/env python3
"""Records what `transformers` computes of images with tiny models that see: rows of towers, and logits after them.

    images.py [NAME...]        into fixtures/images/NAME.json

A fixture has the `config.json`, the tensors as `architectures.py` describes them, the sizes of pictures whose
normalised pixels are made in the same way (`picture 0`, `[3, height, width]`), their rows, a prompt with them,
the logits of some of its positions and the tokens that follow greedily. Needs torch, transformers and
safetensors from PyPI.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from architectures import EXPERTS, SIZES, size_of, values

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "images"
IMAGE, START, END = 126, 124, 125
QWEN_IDS = {"vision_start_token_id": START, "vision_end_token_id": END, "image_token_id": IMAGE, "video_token_id": 127}
QWEN_TOWER = {"depth": 3, "hidden_size": 40, "intermediate_size": 52, "num_heads": 2, "out_hidden_size": 64, "patch_size": 6, "num_position_embeddings": 25}
QWEN3VL_TEXT = {**SIZES, "head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 4, 4], "mrope_interleaved": True}}
QWEN35_TEXT = {**SIZES, "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
               "linear_value_head_dim": 16,
               "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2], "mrope_interleaved": True, "partial_rotary_factor": 0.5}}


def qwen_patches(model, pictures: list[np.ndarray]) -> dict:
    """Patches in blocks of merged cells, each picture twice in time."""
    vision = model.config.vision_config
    p, m = vision.patch_size, vision.spatial_merge_size
    rows, grids = [], []
    for picture in pictures:
        channels, height, width = picture.shape
        h, w = height // p, width // p
        x = np.stack([picture, picture])  # time, channel, y, x
        x = x.reshape(2, channels, h // m, m, p, w // m, m, p).transpose(2, 5, 3, 6, 1, 0, 4, 7)
        rows.append(x.reshape(h * w, channels * 2 * p * p))
        grids.append([1, h, w])
    return {"pixel_values": torch.tensor(np.concatenate(rows)), "image_grid_thw": torch.tensor(grids)}


def qwen_rows(model, inputs: dict) -> list[torch.Tensor]:
    return list(model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output)


def planes(model, pictures: list[np.ndarray]) -> dict:
    return {"pixel_values": torch.tensor(np.stack(pictures))}


def planes_in_batch(model, pictures: list[np.ndarray]) -> dict:
    return {"pixel_values": torch.tensor(np.stack(pictures))[None]}


def sized_planes(model, pictures: list[np.ndarray]) -> dict:
    """Planes padded to the largest of them."""
    sizes = [picture.shape[1:] for picture in pictures]
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    padded = [np.pad(picture, ((0, 0), (0, height - picture.shape[1]), (0, width - picture.shape[2]))) for picture in pictures]
    return {"pixel_values": torch.tensor(np.stack(padded)), "image_sizes": torch.tensor(sizes)}


def flat_patches(pictures: list[np.ndarray], p: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Patches of y, x, channel, padded to the largest number of them."""
    rows, grids = [], []
    for picture in pictures:
        channels, height, width = picture.shape
        grids.append((height // p, width // p))
        rows.append(picture.reshape(channels, height // p, p, width // p, p).transpose(1, 3, 2, 4, 0).reshape(-1, p * p * channels))
    most = max(len(row) for row in rows)
    return torch.tensor(np.stack([np.pad(row, ((0, most - len(row)), (0, 0))) for row in rows])), grids


def naflex(model, pictures: list[np.ndarray]) -> dict:
    values, grids = flat_patches(pictures, model.config.vision_config.patch_size)
    mask = torch.zeros(values.shape[:2], dtype=torch.int32)
    for row, (h, w) in zip(mask, grids):
        row[:h * w] = 1
    return {"pixel_values": values, "spatial_shapes": torch.tensor(grids), "pixel_attention_mask": mask}


def placed_patches(model, pictures: list[np.ndarray]) -> dict:
    """Patches with their column and row; pixels from 0 to 1, as the model doubles them and takes 1 away."""
    vision = model.config.vision_config
    unified = hasattr(vision, "model_patch_size")
    scaled = pictures if unified else [(picture + 1) / 2 for picture in pictures]
    values, grids = flat_patches(scaled, vision.model_patch_size if unified else vision.patch_size)
    places = torch.full((*values.shape[:2], 2), -1)
    for row, (h, w) in zip(places, grids):
        row[:h * w] = torch.tensor([(x, y) for y in range(h) for x in range(w)])
    return {"pixel_values": values, "image_position_ids": places}


def features(model, inputs: dict) -> list[torch.Tensor]:
    return list(model.model.get_image_features(**inputs, return_dict=True).pooler_output)


SIGLIP = {"num_hidden_layers": 3, "hidden_size": 40, "intermediate_size": 52, "num_attention_heads": 2}
GEMMA4_TEXT = {**SIZES, "head_dim": 16, "global_head_dim": 32, "sliding_window": 16, "num_hidden_layers": 6, "num_kv_shared_layers": 0}
LOCAL = {"layer_types": (["sliding_attention"] * 5 + ["full_attention"])}
# name: configuration, class, parts, sizes of pictures (height, width), inputs, rows
MODELS = {
    "qwen35": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration",
               {"text_config": QWEN35_TEXT, "vision_config": QWEN_TOWER, **QWEN_IDS},
               [(36, 60), (24, 12)], qwen_patches, qwen_rows),
    "qwen3vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration",
                {"text_config": QWEN3VL_TEXT, "vision_config": {**QWEN_TOWER, "depth": 4, "deepstack_visual_indexes": [0, 2]}, **QWEN_IDS},
                [(36, 60), (24, 12)], qwen_patches, qwen_rows),
    "qwen3vlmoe": ("Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration",
                   {"text_config": {**QWEN3VL_TEXT, **EXPERTS, "moe_intermediate_size": 24}, "vision_config": {**QWEN_TOWER, "depth": 4, "deepstack_visual_indexes": [1, 2]}, **QWEN_IDS},
                   [(24, 36)], qwen_patches, qwen_rows),
    "qwen25vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
                 {"text_config": {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}},
                  "vision_config": {"depth": 4, "hidden_size": 40, "intermediate_size": 52, "num_heads": 2, "out_hidden_size": 64, "patch_size": 6,
                                    "window_size": 24, "fullatt_block_indexes": [1, 3]}, **QWEN_IDS},
                 [(36, 60), (24, 12)], qwen_patches, qwen_rows),
    "gemma3": ("Gemma3Config", "Gemma3ForConditionalGeneration",
               {"text_config": {**SIZES, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7, "tie_word_embeddings": False},
                "tie_word_embeddings": False,
                "vision_config": {**SIGLIP, "image_size": 24, "patch_size": 4}, "mm_tokens_per_image": 9, "image_token_index": IMAGE, "image_token_id": IMAGE,
                "boi_token_index": START, "eoi_token_index": END},
               [(24, 24), (24, 24)], planes, features),
    "gemma4": ("Gemma4Config", "Gemma4ForConditionalGeneration",
               {"text_config": {**GEMMA4_TEXT, **LOCAL, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
                "vision_config": {**SIGLIP, "head_dim": 20, "num_key_value_heads": 2, "patch_size": 4, "position_embedding_size": 24, "pooling_kernel_size": 3,
                                  "use_clipped_linears": False, "standardize": True},
                "audio_config": None, "image_token_id": IMAGE, "boi_token_id": START, "eoi_token_id": END},
               [(24, 36), (12, 24)], placed_patches, features),
    "gemma4-clipped": ("Gemma4Config", "Gemma4ForConditionalGeneration",
                       {"text_config": {**GEMMA4_TEXT, **LOCAL, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128},
                        "vision_config": {**SIGLIP, "head_dim": 20, "num_key_value_heads": 2, "patch_size": 4, "position_embedding_size": 24, "pooling_kernel_size": 3,
                                          "use_clipped_linears": True, "standardize": False},
                        "audio_config": None, "image_token_id": IMAGE, "boi_token_id": START, "eoi_token_id": END},
                       [(24, 36)], placed_patches, features),
    "smolvlm": ("SmolVLMConfig", "SmolVLMForConditionalGeneration",
                {"text_config": {"model_type": "llama", **SIZES}, "vision_config": {**SIGLIP, "image_size": 24, "patch_size": 4},
                 "scale_factor": 2, "image_token_id": IMAGE, "pad_token_id": 0},
                [(24, 24), (24, 24)], planes_in_batch, features),
    "idefics3": ("Idefics3Config", "Idefics3ForConditionalGeneration",
                 {"text_config": {"model_type": "llama", **SIZES}, "vision_config": {**SIGLIP, "image_size": 36, "patch_size": 4},
                  "scale_factor": 3, "image_token_id": IMAGE, "pad_token_id": 0},
                 [(36, 36)], planes_in_batch, features),
    "lfm2vl": ("Lfm2VlConfig", "Lfm2VlForConditionalGeneration",
               {"text_config": {"model_type": "lfm2", **SIZES, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"], "block_auto_adjust_ff_dim": False},
                "vision_config": {"model_type": "siglip2_vision_model", **SIGLIP, "patch_size": 4, "num_patches": 36}, "downsample_factor": 2, "projector_hidden_size": 48,
                "projector_use_layernorm": True, "image_token_id": IMAGE},
               [(24, 40), (16, 8)], naflex, features),
    "mistral3": ("Mistral3Config", "Mistral3ForConditionalGeneration",
                 {"text_config": {"model_type": "mistral", **SIZES, "head_dim": 16, "sliding_window": None, "tie_word_embeddings": False},
                  "tie_word_embeddings": False, "vision_config": {"model_type": "pixtral", **SIGLIP, "head_dim": 20, "image_size": 48, "patch_size": 4}, "spatial_merge_size": 2,
                  "multimodal_projector_bias": False, "image_token_index": IMAGE, "image_token_id": IMAGE},
                 [(24, 40), (16, 8)], sized_planes, features),
    "pixtral": ("LlavaConfig", "LlavaForConditionalGeneration",
                {"text_config": {"model_type": "mistral", **SIZES, "head_dim": 16, "sliding_window": None},
                 "vision_config": {"model_type": "pixtral", **SIGLIP, "head_dim": 20, "image_size": 48, "patch_size": 4, "hidden_act": "silu"},
                 "vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_token_index": IMAGE, "image_token_id": IMAGE},
                [(12, 20), (16, 8)], sized_planes, features),
    "internvl": ("InternVLConfig", "InternVLForConditionalGeneration",
                 {"text_config": {"model_type": "qwen3", **SIZES, "head_dim": 32, "tie_word_embeddings": False}, "tie_word_embeddings": False,
                  "vision_config": {**SIGLIP, "image_size": [24, 24], "patch_size": [4, 4], "layer_scale_init_value": 0.5}, "image_token_id": IMAGE,
                  "downsample_ratio": 0.5},
                 [(24, 24), (24, 24)], planes, features),
}
# norms of these language models are stored without their one
PLUS_ONE = {"qwen35", "gemma3"}
# masks of `forward` are others than those of `generate`, which are the ones that the model is used with
GENERATED = set()


def bound_of(key: str, shape: list[int], plus_one: bool) -> tuple[float, float]:
    """Gain and offset of a tensor, as for language models, and of what only towers have."""
    if not shape:
        return 0.0, -0.75 if key.endswith("_min") else 0.75  # bounds of linears
    if key.endswith(("lambda_1", "lambda_2", "std_scale")):
        return 0.25, 1.0
    return size_of(key, shape, plus_one)


def record(name: str) -> None:
    torch.manual_seed(0)
    config_name, class_name, parts, sizes, make_inputs, rows_of = MODELS[name]
    auto = getattr(transformers, class_name)
    model = auto(getattr(transformers, config_name)(**parts)).float().eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config_json = json.loads((Path(folder) / "config.json").read_text())
        tensors, made = [], {}
        with safe_open(str(Path(folder) / "model.safetensors"), "numpy") as file:
            for key in sorted(file.keys()):
                shape = list(file.get_slice(key).get_shape())
                tower = "visual" in key or "vision" in key
                gain, offset = bound_of(key, shape, name in PLUS_ONE and not tower and "linear_attn.norm" not in key)
                tensors.append({"name": key, "shape": shape, "gain": gain, "offset": offset})
                made[key] = values(key, shape, gain, offset)
        save_file(made, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        pictures = [values(f"picture {i}", [3, *size], 1.0, 0.0) for i, size in enumerate(sizes)]
        inputs = make_inputs(model, pictures)
        with torch.no_grad():
            rows = [row.float().numpy() for row in rows_of(model, inputs)]
            if len(rows) == 1 and len(sizes) > 1:  # of all pictures together
                rows = np.split(rows[0], len(sizes))
            prompt = [5, 17, START, *[IMAGE] * len(rows[0]), END, 64, 7, 31]
            for more in rows[1:]:
                prompt += [START, *[IMAGE] * len(more), END]
            prompt += [99, 3, 12]
            ids = torch.tensor([prompt])
            accepted = inspect.signature(model.forward).parameters
            inputs |= {key: (ids == IMAGE).int() for key in ("mm_token_type_ids", "token_type_ids") if key in accepted}
            logits = model(input_ids=ids, use_cache=False, **inputs).logits[0].float().numpy()
            # the token that ends texts is one like others: with `min_new_tokens` it would never be chosen
            model.generation_config.eos_token_id = None
            follow = model.generate(input_ids=ids, do_sample=False, max_new_tokens=8, **inputs)[0][len(prompt):].tolist()
        if name in GENERATED:
            with torch.no_grad():
                made = model.generate(input_ids=ids, do_sample=False, max_new_tokens=1, return_dict_in_generate=True, output_logits=True, **inputs)
            logits[-1] = made.logits[0][0].float().numpy()
    positions = [len(prompt) - 1] if name in GENERATED else [0, 3, 3 + len(rows[0]) // 2, 3 + len(rows[0]), len(prompt) - 1]
    short = lambda table: [[float(f"{x:.7g}") for x in row] for row in table]
    fixture = {"transformers": transformers.__version__, "config": config_json, "tensors": tensors, "pictures": sizes,
               "rows": [short(table) for table in rows], "tokens": prompt, "positions": positions,
               "logits": short(logits[positions]), "greedy": follow}
    OUT.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fixture.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(f"{name}: {len(tensors)} tensors, rows {[row.shape for row in rows]} up to {max(np.abs(r).max() for r in rows):.2f}, "
          f"logits up to {np.abs(logits).max():.2f}, then {follow}")


def main() -> None:
    for name in sys.argv[1:] or MODELS:
        record(name)


if __name__ == "__main__":
    main()
