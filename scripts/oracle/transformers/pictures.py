#!/usr/bin/env python3
"""Records what Pillow and the processors of `transformers` make of pictures.

    pictures.py        into crates/images/tests/pictures.json

Pixel i of a picture is the upper byte of `architectures.values` of its name. Needs torch, torchvision, transformers
and pillow below 13 from PyPI: Pillow 13 resizes pictures that lose more than twice as much height as width
vertically first, and all versions before it, with which models were trained, and torchvision horizontally first.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import PIL
import torch
import transformers
from PIL import Image, ImageOps
from transformers.models.gemma3 import image_processing_pil_gemma3
from transformers.models.gemma4 import image_processing_gemma4
from transformers.models.got_ocr2 import image_processing_pil_got_ocr2
from transformers.models.idefics3 import image_processing_pil_idefics3
from transformers.models.lfm2_vl import image_processing_lfm2_vl
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl, image_processing_qwen2_vl

from architectures import values

OUT = Path(__file__).resolve().parents[3] / "crates" / "images" / "tests" / "pictures.json"
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
# from, to: smaller, larger, one side only, the same, to one pixel, far smaller
SIZES = [((17, 11), (8, 5)), ((9, 7), (20, 16)), ((16, 10), (16, 4)), ((16, 10), (5, 10)), ((8, 8), (8, 8)), ((13, 29), (1, 1)), ((101, 77), (6, 9))]


def picture(name: str, width: int, height: int) -> Image.Image:
    pixels = np.floor((values(name, [height, width, 3], 1.0, 0.0).astype(np.float64) + 1) * 128).astype(np.uint8)
    return Image.fromarray(pixels, "RGB")


def smooth(name: str, width: int, height: int) -> Image.Image:
    return picture(name, 4, 3).resize((width, height), Image.BICUBIC)


def flat(image: Image.Image) -> list[int]:
    return np.asarray(image.convert("RGB")).reshape(-1).tolist()


def resized() -> list[dict]:
    out = []
    for (source, target) in SIZES:
        for name, kind in FILTERS.items():
            image = picture(f"{source}", *source).resize(target, kind)
            out.append({"name": f"{source}", "from": source, "to": target, "filter": name, "pixels": flat(image)})
    return out


def files() -> list[dict]:
    out = []

    def add(name: str, image: Image.Image, tolerance: int, kind: str, **how) -> None:
        file = io.BytesIO()
        image.save(file, kind, **how)
        opened = Image.open(io.BytesIO(file.getvalue()))
        turned = ImageOps.exif_transpose(opened)
        out.append({"name": name, "file": base64.b64encode(file.getvalue()).decode(), "tolerance": tolerance,
                    "size": turned.size, "pixels": flat(turned)})

    rgb = smooth("file", 12, 7)
    add("png rgb", rgb, 0, "PNG")
    add("png gray", rgb.convert("L"), 0, "PNG")
    add("png palette", rgb.quantize(7), 0, "PNG")
    add("png one bit", rgb.convert("1"), 0, "PNG")
    rgba = rgb.copy()
    rgba.putalpha(smooth("alpha", 12, 7).convert("L"))
    add("png with transparency", rgba, 0, "PNG")
    add("png gray with transparency", rgba.convert("LA"), 0, "PNG")
    add("bmp", rgb, 0, "BMP")
    add("gif", rgb.quantize(7), 0, "GIF")
    add("gif animated", rgb.quantize(7), 0, "GIF", save_all=True, append_images=[smooth("other", 12, 7).quantize(7)])
    add("webp lossless", rgb, 0, "WEBP", lossless=True)
    add("webp", rgb, 3, "WEBP", quality=90)
    add("webp with transparency", rgba, 0, "WEBP", lossless=True, exact=True)
    add("jpeg", rgb, 3, "JPEG", quality=95, subsampling=0)
    add("jpeg subsampled", rgb, 12, "JPEG", quality=95, subsampling=2)
    add("jpeg progressive", rgb, 3, "JPEG", quality=95, subsampling=0, progressive=True)
    add("jpeg gray", rgb.convert("L"), 3, "JPEG", quality=95)
    add("jpeg cmyk", rgb.convert("CMYK"), 5, "JPEG", quality=95)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        add(f"jpeg turned {orientation}", rgb, 3, "JPEG", quality=95, subsampling=0, exif=exif)
    return out


def processed() -> list[dict]:
    """Patches of the processors of Qwen, row after row, of one of the two equal moments."""
    out = []
    constants = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}
    for (width, height), least, most in [((40, 30), 64, 1 << 20), ((90, 33), 64, 700), ((5, 9), 900, 1 << 20)]:
        how = dict(patch_size=4, merge_size=2, temporal_patch_size=2, size={"shortest_edge": least, "longest_edge": most}, **constants)
        image = picture(f"processed {width}", width, height)
        each = []
        for processor in [image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(**how), image_processing_qwen2_vl.Qwen2VLImageProcessor(**how)]:
            made = processor(image, return_tensors="pt")
            _, h, w = made["image_grid_thw"][0].tolist()
            x = made["pixel_values"].float().numpy().reshape(h // 2, w // 2, 2, 2, 3, 2, 4, 4)
            assert np.array_equal(x[..., 0, :, :], x[..., 1, :, :])
            x = x[:, :, :, :, :, 0].transpose(0, 2, 1, 3, 4, 5, 6).reshape(h * w, 48)
            each.append(x)
        apart = float(np.abs(each[0] - each[1]).max() * 255 * 0.5)
        print(f"{width} x {height}: {h} x {w} patches, Pillow and torchvision {apart:.2f} steps of 255 apart")
        out.append({"name": f"processed {width}", "from": [width, height], "least": least, "most": most, "grid": [h, w], **constants,
                    "pillow": [round(float(v), 6) for v in each[0].reshape(-1)], "torchvision": [round(float(v), 6) for v in each[1].reshape(-1)]})
    return out


def flat_pictures(values: torch.Tensor, places: torch.Tensor, p: int) -> list[np.ndarray]:
    """Pictures `[3, height, width]` of patches of row, column and channel with their columns and rows."""
    out = []
    for rows, place in zip(values, places):
        rows, place = rows[place[:, 0] >= 0], place[place[:, 0] >= 0]
        w, h = (int(n) + 1 for n in place.max(0).values)
        out.append(rows.reshape(h, w, p, p, 3).permute(4, 0, 2, 1, 3).reshape(3, h * p, w * p).numpy())
    return out


def naflex_pictures(made: dict, p: int) -> list[np.ndarray]:
    out = []
    for rows, (h, w) in zip(made["pixel_values"], made["spatial_shapes"].tolist()):
        out.append(rows[:h * w].reshape(h, w, p, p, 3).permute(4, 0, 2, 1, 3).reshape(3, h * p, w * p).numpy())
    return out


def cuts() -> list[dict]:
    """The pictures that towers read: each rule with sizes that reach every branch."""
    pixels = {"do_rescale": True, "do_normalize": False, "return_tensors": "pt"}
    gemma3 = image_processing_pil_gemma3.Gemma3ImageProcessorPil(size={"height": 24, "width": 24})
    gemma4 = image_processing_gemma4.Gemma4ImageProcessor(patch_size=2, pooling_kernel_size=3, max_soft_tokens=70)
    pixtral = image_processing_pil_pixtral.PixtralImageProcessorPil(size={"longest_edge": 40}, patch_size={"height": 8, "width": 8})
    idefics3 = image_processing_pil_idefics3.Idefics3ImageProcessorPil(size={"longest_edge": 40}, max_image_size={"longest_edge": 16})
    lfm2 = image_processing_lfm2_vl.Lfm2VlImageProcessor(
        tile_size=16, min_tiles=2, max_tiles=6, min_image_tokens=4, max_image_tokens=9, encoder_patch_size=4, downsample_factor=2)
    tiles = image_processing_pil_got_ocr2.GotOcr2ImageProcessorPil(size={"height": 16, "width": 16}, crop_to_patches=True, min_patches=1, max_patches=6)
    sized = lambda made: [picture[:, :h, :w].numpy() for picture, (h, w) in zip(made["pixel_values"], made["image_sizes"])]
    # rule, filter, apart, sizes, pictures
    rules = [
        ({"square": 24}, "bilinear", 0, [(40, 30), (7, 50)], lambda i: list(np.asarray(gemma3(i, do_pan_and_scan=False, **pixels)["pixel_values"]))),
        ({"budget": [6, 70]}, "bicubic", 1, [(40, 30), (10, 9), (3, 400), (500, 4), (100, 77)],
         lambda i: (lambda made: flat_pictures(made["pixel_values"], made["image_position_ids"], 2))(gemma4(i, **pixels))),
        ({"longest": [40, 8]}, "bicubic", 0, [(40, 30), (17, 9), (90, 33), (33, 90)], lambda i: sized(pixtral(i, **pixels))),
        ({"rows": [40, 16]}, "lanczos", 0, [(40, 30), (30, 40), (90, 33), (16, 16), (10, 61)],
         lambda i: list(np.asarray(idefics3(i, return_row_col_info=False, **pixels)["pixel_values"])[0])),
        ({"tiles": [16, 2, 6], "area": [8, 256, 576]}, "bilinear", 1, [(24, 24), (33, 33), (40, 30), (90, 33), (12, 9)],
         lambda i: naflex_pictures(lfm2(i, **pixels), 4)),
        ({"tiles": [16, 1, 6]}, "bicubic", 0, [(40, 30), (16, 18), (90, 33), (20, 61), (33, 33)], lambda i: list(np.asarray(tiles(i, **pixels)["pixel_values"]))),
    ]
    out = []
    for rule, kind, apart, sizes, pictures in rules:
        for size in sizes:
            made = [np.rint(np.asarray(picture) * 255).astype(np.uint8).transpose(1, 2, 0) for picture in pictures(picture(f"cut {size}", *size))]
            out.append({"name": f"cut {size}", "from": size, **rule, "filter": kind, "tolerance": apart,
                        "sizes": [[p.shape[1], p.shape[0]] for p in made], "pixels": base64.b64encode(b"".join(p.tobytes() for p in made)).decode()})
            print(rule, size, out[-1]["sizes"])
    return out


def main() -> None:
    if int(PIL.__version__.split(".")[0]) >= 13:
        raise SystemExit("want pillow below 13, which resizes in one order")
    torch.manual_seed(0)
    made = {"transformers": transformers.__version__, "resized": resized(), "files": files(), "processed": processed(), "cuts": cuts()}
    text = ",\n".join(f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) + "\n]" if isinstance(value, list)
                      else f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items())
    OUT.write_text("{\n" + text + "\n}\n")
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
