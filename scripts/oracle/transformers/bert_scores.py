#!/usr/bin/env python3
"""Records the scores of `transformers` for a GGUF file of a BERT reranker: single texts, and
pairs with the types of their tokens.

    bert_scores.py tiny-bert-rank-q8_0.gguf       into fixtures/embeddings/tiny-bert-rank-q8_0.json

The weights are decoded to f32 and loaded into BertForSequenceClassification: GELU with the error function,
which llama.cpp replaces by a table of halves of its tanh form, and the second row of the types for the tokens
of a second text, which llama.cpp does not use. The fixture has model, sha256, oracle, and texts: [{tokens,
second, vector}]; `second` is where the second text begins, null for a single text. Token ids are random.
Needs torch, transformers and gguf from PyPI.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

OUT = Path(__file__).resolve().parents[3] / "fixtures" / "embeddings"
# names of GGUF and of transformers, of a model and of each of its layers
OUTER = {
    "token_embd": "bert.embeddings.word_embeddings", "position_embd": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings", "token_embd_norm": "bert.embeddings.LayerNorm",
    "cls": "bert.pooler.dense", "cls.output": "classifier",
}
LAYER = {
    "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value", "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense", "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
# tokens, and where the second text begins
TEXTS = [(7, None), (45, None), (12, 5), (60, 9), (40, 33)]


def renamed(name: str) -> str:
    """`blk.0.attn_q.weight` as `bert.encoder.layer.0.attention.self.query.weight`; a tensor without a
    counterpart is an error."""
    part, kind = name.rsplit(".", 1)
    if part in OUTER:
        return f"{OUTER[part]}.{kind}"
    _, layer, part = part.split(".")
    return f"bert.encoder.layer.{layer}.{LAYER[part]}.{kind}"


def load(path: Path) -> transformers.PreTrainedModel:
    reader = gguf.GGUFReader(path)
    key = lambda name: reader.fields[f"bert.{name}"].contents()
    weights = {renamed(t.name): torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type))) for t in reader.tensors}
    weights["classifier.weight"] = weights["classifier.weight"].reshape(1, -1)  # one label: a vector in the file
    config = transformers.BertConfig(
        vocab_size=len(weights["bert.embeddings.word_embeddings.weight"]), hidden_size=key("embedding_length"), num_labels=1,
        intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"), num_attention_heads=key("attention.head_count"),
        layer_norm_eps=key("attention.layer_norm_epsilon"), max_position_embeddings=key("context_length"), hidden_act="gelu",
        type_vocab_size=len(weights["bert.embeddings.token_type_embeddings.weight"]))
    model = transformers.BertForSequenceClassification(config).to(torch.float32).eval()
    model.load_state_dict(weights)  # refuses missing and other names and shapes
    return model


def main() -> None:
    path = Path(sys.argv[1])
    model, rng, texts = load(path), random.Random(0), []
    for length, second in TEXTS:
        tokens = [rng.randrange(model.config.vocab_size) for _ in range(length)]
        types = [int(second is not None and at >= second) for at in range(length)]
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([tokens]), token_type_ids=torch.tensor([types])).logits[0]
        texts.append({"tokens": tokens, "second": second, "vector": [float(f"{x:.7g}") for x in scores.tolist()]})
    head = {
        "model": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "oracle": {"package": f"transformers {transformers.__version__}", "version": f"torch {torch.__version__}"},
    }
    lines = ",\n".join(json.dumps(text, separators=(",", ":")) for text in texts)
    (OUT / f"{path.stem}.json").write_text(json.dumps(head)[:-1] + f',\n"texts":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
