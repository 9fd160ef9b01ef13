#!/usr/bin/env python3
"""Loads folders that `tern convert FILE.gguf FOLDER` wrote with
`transformers`, and compares logits and tokens.

    safetensors_folders.py fixtures TERN                  every model of fixtures/safetensors whose folder is written: folder, GGUF file, folder
    safetensors_folders.py folder FOLDER --text TEXT      prints the tokens of a text and the best next tokens

`fixtures` builds each recorded folder as `transformers/architectures.py` does, converts it
both ways with the binary TERN, and compares the logits that `transformers` computes for the
written folder with the recorded ones.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "transformers"))
from architectures import values

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "safetensors"
TOKENIZER = {
    "added_tokens": [{"id": 2, "content": "<end>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
}


def compare(path: Path, tern: str) -> str:
    recorded = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        source, gguf, target = (Path(temporary) / name for name in ("source", "model.gguf", "target"))
        source.mkdir()
        (source / "config.json").write_text(json.dumps(recorded["config"]))
        (source / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        made = {t["name"]: values(t["name"], t["shape"], t["gain"], t["offset"]) for t in recorded["tensors"]}
        save_file(made, str(source / "model.safetensors"), metadata={"format": "pt"})
        subprocess.run([tern, "convert", source, gguf], check=True, capture_output=True)
        written = subprocess.run([tern, "convert", gguf, target], capture_output=True, text=True)
        if written.returncode != 0:
            return written.stderr.strip()[:90]
        model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.tensor([recorded["tokens"]]), use_cache=False).logits[0].float().numpy()
    want = np.array(recorded["logits"])
    off = np.abs(logits[recorded["positions"]] - want).max() / np.abs(want).max()
    return f"{'off by' if off < 1e-4 else 'WRONG by'} {off:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("fixtures")
    verb.add_argument("tern")
    verb = verbs.add_parser("folder")
    verb.add_argument("folder", type=Path)
    verb.add_argument("--text", default="Once upon a time")
    args = parser.parse_args()
    if args.verb == "fixtures":
        for path in sorted(FIXTURES.glob("*.json")):
            print(f"{path.stem}: {compare(path, args.tern)}", flush=True)
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    ids = tokenizer(args.text)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    best = torch.topk(torch.log_softmax(logits, 0), 5)
    print(ids)
    print([(tokenizer.decode([i]), round(p, 4)) for i, p in zip(best.indices.tolist(), best.values.tolist())])


if __name__ == "__main__":
    main()
