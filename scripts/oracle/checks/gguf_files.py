#!/usr/bin/env python3
"""Compares llama.cpp on files that `tern convert` wrote with what
`transformers/own_code.py` records. Writes nothing.

    gguf_files.py TERN [NAME...]        TERN is the binary

The folder of a model of `transformers/own_code.py` gets a vocabulary of words and, unless it has a
classifier, a mean as its pooling. `tern convert` makes a GGUF file of it, in F32; llama.cpp's vector of the
recorded tokens is compared with the mean of the reference's rows, or with its scores or logits. Needs what
`transformers/own_code.py` needs, and llama.cpp as in ../README.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

sys.path[1:1] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("llama", "transformers")]
from architectures import TOKENS, VOCAB, size_of, values
from libllama import Library, Model
from models import PORTABLE
from own_code import MODELS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer() -> dict:
    words = SPECIAL + [f"w{i}" for i in range(len(SPECIAL), VOCAB)]
    return {
        "added_tokens": [{"id": i, "content": word, "special": True} for i, word in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                           "pair": [], "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {word: i for i, word in enumerate(words)}},
    }


def compare(tern: str, library: Library, name: str) -> None:
    reference, config, shapes = MODELS[name]
    weights = {key: values(key, shape, *size_of(key, shape, False)) for key, shape in shapes.items()}
    with torch.no_grad():
        want = reference(config, {key: torch.from_numpy(weight) for key, weight in weights.items()}, torch.tensor(TOKENS)).float().numpy()
    is_classifier = config["architectures"][0].endswith("ForSequenceClassification")
    is_decoder = config["architectures"][0].endswith("ForCausalLM")
    want = want.mean(0) if not is_classifier and not is_decoder else want.ravel()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        (folder / "1_Pooling").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
        if not is_classifier and not is_decoder:
            modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
            modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
            (folder / "modules.json").write_text(json.dumps(modules))
            (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
        save_file(weights, str(folder / "model.safetensors"))
        file = Path(scratch) / "model.gguf"
        subprocess.run([tern, "convert", str(folder), str(file)], check=True, stdout=subprocess.DEVNULL)
        model = Model(library, file, n_ctx=256, threads=1, kv="f32", flash="off", embeddings=not is_decoder)
        if is_decoder:
            model.feed(TOKENS, outputs_from=0)
            got = model.logits(len(TOKENS)).ravel()
        else:
            got = model.embed(TOKENS).ravel()
        model.close()
    print(f"{name}: off by {np.abs(got - want).max() / np.abs(want).max():.1e}")


def main() -> None:
    library = Library(Path(os.environ["TERN_LLAMA_LIB"]), PORTABLE)
    for name in sys.argv[2:] or MODELS:
        try:
            compare(sys.argv[1], library, name)
        except SystemExit:  # llama.cpp refuses the file; the others are compared
            print(f"{name}: " + " ".join(line.strip() for line in library.log[-4:] if "error" in line))


if __name__ == "__main__":
    main()
