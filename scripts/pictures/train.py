#!/usr/bin/env python3
"""Trains a small model that sees drawn pictures: what is in them, on which side, and which digit is written.

    train.py FOLDER [--steps N] [--seed N]      a folder of safetensors, with tokenizer, template and processor
    train.py FOLDER --again [--steps N]         trains the model of the folder further, at half the rate
    train.py FOLDER --held-out OUT.json [N]     N pictures that were not trained on, with their answers

The model is a Qwen 3 VL: all parts of the real ones, in small. Needs torch, transformers, tokenizers and pillow from
PyPI. `fixtures/pictures` has one of 36 right answers of 60, which was stopped at a loss of 0.2 after about a quarter of
an hour on one core, as `tern quantize FOLDER model.gguf --to q8_0`, its tower quantized too, and its answers.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw, ImageFont

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220), "yellow": (230, 210, 40)}
SHAPES = ["circle", "square", "triangle"]
SIZES = [(48, 48), (64, 48), (48, 64)]  # width, height
PATCH, MERGE = 8, 2
# words after a space before those that begin a text, whose merges would cut them
WORDS = [f"\u0120{word}" for word in [*COLOURS, *SHAPES, "is", "this", "left", "right", "written", "the"]] + ["left", "right", "What", "Where", "user", "assistant"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def drawn(rng: random.Random, size: tuple[int, int]) -> tuple[Image.Image, list[tuple[str, str]]]:
    """A picture, and questions about it with their answers."""
    width, height = size
    light = rng.random() < 0.5
    ground = tuple(rng.randint(200, 255) if light else rng.randint(0, 50) for _ in range(3))
    image = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(image)
    kind = rng.random()
    if kind < 0.3:
        digit = str(rng.randint(0, 9))
        font = ImageFont.load_default(size=rng.randint(30, 38))
        ink = tuple(rng.randint(0, 60) if light else rng.randint(190, 255) for _ in range(3))
        draw.text((rng.randint(4, width - 26), rng.randint(0, max(1, height - 42))), digit, fill=ink, font=font)
        return image, [("What is written?", digit)]

    def shape(left: int, right: int) -> tuple[str, str]:
        colour, name = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        r = rng.randint(8, 11)
        x, y = rng.randint(left + r, right - r), rng.randint(r + 1, height - r - 1)
        fill = tuple(min(255, max(0, c + rng.randint(-20, 20))) for c in COLOURS[colour])
        box = (x - r, y - r, x + r, y + r)
        if name == "circle":
            draw.ellipse(box, fill=fill)
        elif name == "square":
            draw.rectangle(box, fill=fill)
        else:
            draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=fill)
        return colour, name

    if kind < 0.5:
        colour, name = shape(0, width)
        return image, [("What is this?", f"a {colour} {name}")]
    sides = {"left": shape(0, width // 2), "right": shape(width // 2, width)}
    asked = [(f"What is {side}?", f"a {colour} {name}") for side, (colour, name) in sides.items()]
    if sides["left"][1] != sides["right"][1]:
        asked += [(f"Where is the {name}?", side) for side, (_, name) in sides.items()]
    rng.shuffle(asked)
    return image, asked


def patches(image: Image.Image) -> np.ndarray:
    x = (np.asarray(image, dtype=np.float32) / 255 - 0.5) / 0.5
    h, w = x.shape[0] // PATCH, x.shape[1] // PATCH
    x = x.transpose(2, 0, 1).reshape(3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH).transpose(1, 4, 2, 5, 0, 3, 6)
    x = np.repeat(x[..., None, :, :], 2, axis=-3)  # two equal moments
    return x.reshape(h * w, -1)


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # each word is one token, which grows letter by letter
    merges = list(dict.fromkeys((word[:end], word[end]) for word in WORDS for end in range(1, len(word))))
    texts = [*SPECIAL, *alphabet, *(first + second for first, second in merges)]
    vocab = {text: i for i, text in enumerate(texts)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    return fast


def config(ids: dict[str, int], vocab: int):
    text = {
        "vocab_size": vocab, "initializer_range": 0.1, "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 24, "max_position_embeddings": 2048, "tie_word_embeddings": True,
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 4, 4], "mrope_interleaved": True}}
    vision = {"depth": 3, "initializer_range": 0.1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 96, "patch_size": PATCH,
              "spatial_merge_size": MERGE, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    return transformers.Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"])


def batch(rng: random.Random, tokens, ids: dict[str, int], count: int) -> dict:
    """Conversations about a picture each: of all that is asked, the answers are learned."""
    size = rng.choice(SIZES)
    rows = (size[0] // PATCH // MERGE) * (size[1] // PATCH // MERGE)
    image, pad = ids["<|image_pad|>"], ids["<|endoftext|>"]
    texts, labels, pixels = [], [], []
    for _ in range(count):
        picture, asked = drawn(rng, size)
        text, learned = [], []
        for turn, (question, answer) in enumerate(asked):
            before = tokens.encode("<|im_start|>user\n")
            if turn == 0:
                before += [ids["<|vision_start|>"], *[image] * rows, ids["<|vision_end|>"]]
            before += tokens.encode(f"{question}<|im_end|>\n<|im_start|>assistant\n")
            after = tokens.encode(f"{answer}<|im_end|>")
            end = tokens.encode("\n")
            text += before + after + end
            learned += [-100] * len(before) + after + [-100] * len(end)
        texts.append(text)
        labels.append(learned)
        pixels.append(patches(picture))
    longest = max(map(len, texts))
    fill = lambda rows, value: torch.tensor([row + [value] * (longest - len(row)) for row in rows])
    input_ids = fill(texts, pad)
    grid = [1, size[1] // PATCH, size[0] // PATCH]
    return {"input_ids": input_ids, "labels": fill(labels, -100), "mm_token_type_ids": (input_ids == image).int(),
            "pixel_values": torch.tensor(np.concatenate(pixels)), "image_grid_thw": torch.tensor([grid] * count)}


def train(folder: Path, steps: int, seed: int, again: bool) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokens = tokenizer()
    ids = {text: tokens.convert_tokens_to_ids(text) for text in SPECIAL}
    kind, rate = transformers.Qwen3VLForConditionalGeneration, 1e-3 if again else 2e-3
    model = kind.from_pretrained(folder, dtype=torch.float32) if again else kind(config(ids, -(-len(tokens) // 8) * 8)).float()
    model.train()
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.05)
    start = time.time()
    for step in range(steps):
        loss = model(**batch(rng, tokens, ids, 32), use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.time() - start:.0f} s", flush=True)
        if step % 250 == 249 or step == steps - 1:
            save(model, tokens, folder)


def save(model, tokens, folder: Path) -> None:
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokens.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2,
                 "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 256, "longest_edge": 65536}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))


def held_out(folder: Path, out: Path, count: int) -> None:
    """Pictures of another seed as PNG, with what the trained model answers in transformers."""
    tokens = tokenizer()
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rng, made, right = random.Random(10_001), [], 0
    image = tokens.convert_tokens_to_ids("<|image_pad|>")
    for at in range(count):
        size = SIZES[at % len(SIZES)]
        picture, asked = drawn(rng, size)
        question, answer = asked[0]
        rows = (size[0] // PATCH // MERGE) * (size[1] // PATCH // MERGE)
        prompt = tokens.encode("<|im_start|>user\n<|vision_start|>") + [image] * rows + tokens.encode(
            f"<|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n")
        prompt = torch.tensor([prompt])
        with torch.no_grad():
            said = model.generate(
                input_ids=prompt, mm_token_type_ids=(prompt == image).int(), pixel_values=torch.tensor(patches(picture)),
                image_grid_thw=torch.tensor([[1, size[1] // PATCH, size[0] // PATCH]]), do_sample=False, max_new_tokens=24)
        said = tokens.decode(said[0][prompt.shape[1]:], skip_special_tokens=True)
        right += said == answer
        file = io.BytesIO()
        picture.save(file, "PNG", optimize=True)
        made.append({"question": question, "answer": answer, "transformers": said, "image": base64.b64encode(file.getvalue()).decode()})
    print(f"{right} of {count} answers are right")
    out.write_text("[\n" + ",\n".join(json.dumps(row) for row in made) + "\n]\n")


def main() -> None:
    folder, rest = Path(sys.argv[1]), sys.argv[2:]
    value = lambda flag, default: int(rest[rest.index(flag) + 1]) if flag in rest else default
    if "--held-out" in rest:
        at = rest.index("--held-out")
        held_out(folder, Path(rest[at + 1]), int(rest[at + 2]) if len(rest) > at + 2 else 60)
    else:
        train(folder, value("--steps", 3000), value("--seed", 1), "--again" in rest)


if __name__ == "__main__":
    main()
