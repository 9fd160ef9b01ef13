#!/usr/bin/env python3
"""Records what `transformers` computes of images with tiny models that see: rows of towers, and logits after them.

    images.py [NAME...]        into fixtures/images/NAME.json

A fixture has the `config.json`, the tensors as `architectures.py` describes them, the sizes of pictures whose
normalised pixels are made in the same way (`picture 0`, `[3, height, width]`), their rows, a prompt with them,
the logits of some of its positions and the tokens that follow greedily. Needs torch, transformers and
safetensors from PyPI.
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

from architectures import SIZES, size_of, values

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "images"
IMAGE, START, END = 126, 124, 125
QWEN_IDS = {"vision_start_token_id": START, "vision_end_token_id": END, "image_token_id": IMAGE, "video_token_id": 127}
QWEN_TOWER = {"depth": 3, "hidden_size": 40, "intermediate_size": 52, "num_heads": 2, "out_hidden_size": 64, "patch_size": 6, "num_position_embeddings": 25}
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


# name: configuration, class, parts, sizes of pictures (height, width), inputs, rows
MODELS = {
    "qwen35": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration",
               {"text_config": QWEN35_TEXT, "vision_config": QWEN_TOWER, **QWEN_IDS},
               [(36, 60), (24, 12)], qwen_patches, qwen_rows),
}
PLUS_ONE = {"qwen35"}


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
                gain, offset = size_of(key, shape, name in PLUS_ONE and not tower and "linear_attn.norm" not in key)
                tensors.append({"name": key, "shape": shape, "gain": gain, "offset": offset})
                made[key] = values(key, shape, gain, offset)
        save_file(made, str(Path(folder) / "model.safetensors"), metadata={"format": "pt"})
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        pictures = [values(f"picture {i}", [3, *size], 1.0, 0.0) for i, size in enumerate(sizes)]
        inputs = make_inputs(model, pictures)
        with torch.no_grad():
            rows = [row.float().numpy() for row in rows_of(model, inputs)]
            prompt = [5, 17, START, *[IMAGE] * len(rows[0]), END, 64, 7, 31]
            for more in rows[1:]:
                prompt += [START, *[IMAGE] * len(more), END]
            prompt += [99, 3, 12]
            ids = torch.tensor([prompt])
            inputs["mm_token_type_ids"] = (ids == IMAGE).int()
            logits = model(input_ids=ids, use_cache=False, **inputs).logits[0].float().numpy()
            follow = model.generate(input_ids=ids, do_sample=False, max_new_tokens=8, min_new_tokens=8, **inputs)[0][len(prompt):].tolist()
    positions = [0, 3, 3 + len(rows[0]) // 2, 3 + len(rows[0]), len(prompt) - 1]
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
