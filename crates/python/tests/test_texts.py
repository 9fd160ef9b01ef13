"""Embeddings, scores and tokens, judged against the command."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from tern_llm import Model, RequestError

TEXTS = ["a small bird", "a large ship", "how do birds fly?", "wings lift them"]


def test_embeddings_are_those_of_the_library(minilm, tern, tmp_path):
    file = tmp_path / "texts"
    file.write_text("\n".join(TEXTS))
    lines = tern("embed", str(file), "-m", minilm, "--device", "cpu", "-q").splitlines()
    want = np.array([json.loads(line)["embedding"] for line in lines], dtype=np.float32)
    with Model(minilm, device="cpu") as model:
        got = model.embed(TEXTS)
        assert got.dtype == np.float32 and got.shape == want.shape and np.abs(got - want).max() < 1e-6
        assert np.linalg.norm(got, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
        many = model.embed(TEXTS * 200)
        assert many.shape == (800, 384) and np.array_equal(many[:4], got)
        one = model.embed(TEXTS[0])
        assert one.shape == (384,) and np.array_equal(one, got[0])
        one[0] = 1  # its own memory
        assert model.embed(TEXTS, dimensions=16).shape == (4, 16)
        assert model.embed([]).shape[0] == 0
        with pytest.raises(RequestError, match="input"):
            model.embed(["word " * 2000])
        assert model.embed(["word " * 2000], truncate=True).shape == (1, 384)
    with Model(minilm, device="cpu", pooling="none") as model:
        rows = model.embed(TEXTS)
        assert [row.shape[1] for row in rows] == [384] * 4 and rows[2].shape[0] > rows[0].shape[0]


def test_scores_are_those_of_the_library(smollm_file, tern, tmp_path):
    # a model whose name says so is asked for yes or no
    judge = tmp_path / "smollm2-rerank.gguf"
    os.symlink(smollm_file, judge)
    query, documents = "how do birds fly?", ["Wings lift them.", "Ships float.", "Birds eat fish."]
    file = tmp_path / "documents"
    file.write_text("\n".join(documents))
    lines = tern("rerank", query, str(file), "-m", str(judge), "--device", "cpu", "-q", "--json").splitlines()
    want = {line["index"]: line["score"] for line in map(json.loads, lines)}
    with Model(judge, device="cpu", context=1024) as model:
        scores = model.score(query, documents)
        assert scores.dtype == np.float32
        assert scores == pytest.approx([want[index] for index in range(3)], abs=1e-6)
        ranked = model.rerank(query, documents, top_n=2)
        assert [one.score for one in ranked] == sorted(scores.tolist(), reverse=True)[:2]
        assert ranked[0].document == documents[ranked[0].index]


def test_only_rerankers_score(stories):
    with pytest.raises(RequestError, match="no reranker"):
        stories.rerank("a", ["b"])


def test_tokens_are_those_of_the_library(smollm, smollm_file, tern):
    text = "Äpfel & Birnen 🐦"
    assert smollm.detokenize(smollm.tokenize(text)) == text
    want = [int(token) for token in tern("tokenize", "-m", smollm_file, text=text).split()]
    assert smollm.tokenize(text) == want
    chat = smollm.tokenize([{"role": "user", "content": "Hi"}])
    assert len(chat) > len(smollm.tokenize("Hi"))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        smollm.detokenize([10**6])
