"""Records what llama.cpp's samplers keep of rows of logits, for the tests of crates/graph and crates/tern.

Use:  oracle/bin/python scripts/oracle/llama/samplers.py crates/graph/tests/samplers.json crates/tern/tests/dry.json

samplers.json  {"filters": [{sampler, parameters, logits, kept}], "mirostat": [{version, tau, eta, steps: [{logits, kept,
               chosen}]}], "dry": [{parameters, tokens, penalties}]}; `kept` are token ids in ascending order
dry.json       the same as "dry", with breakers, in the vocabulary of the story model
"""

from __future__ import annotations

import ctypes as C
import json
import os
import random
import sys
from pathlib import Path

from libllama import Library

ROOT = Path(__file__).resolve().parents[3]
STORIES = ROOT / "crates/tern/models/tern-stories-1bit.gguf"


class TokenData(C.Structure):
    _fields_ = [("id", C.c_int32), ("logit", C.c_float), ("p", C.c_float)]


class TokenArray(C.Structure):
    _fields_ = [("data", C.POINTER(TokenData)), ("size", C.c_size_t), ("selected", C.c_int64), ("sorted", C.c_bool)]


F, I, U, P = C.c_float, C.c_int32, C.c_uint32, C.c_void_p
SIGNATURES = {
    "llama_sampler_init_typical": (P, [F, C.c_size_t]),
    "llama_sampler_init_top_n_sigma": (P, [F]),
    "llama_sampler_init_xtc": (P, [F, F, C.c_size_t, U]),
    "llama_sampler_init_mirostat": (P, [I, U, F, F, I]),
    "llama_sampler_init_mirostat_v2": (P, [U, F, F]),
    "llama_sampler_init_dry": (P, [P, F, F, I, I, C.POINTER(C.c_char_p), C.c_size_t]),
    "llama_sampler_apply": (None, [P, C.POINTER(TokenArray)]),
    "llama_sampler_accept": (None, [P, I]),
    "llama_sampler_free": (None, [P]),
}


class Row:
    """A row of logits as samplers change it."""

    def __init__(self, logits: list[float]):
        self.data = (TokenData * len(logits))(*(TokenData(i, x, 0.0) for i, x in enumerate(logits)))
        self.array = TokenArray(self.data, len(logits), -1, False)

    def apply(self, c: C.CDLL, sampler: int) -> None:
        c.llama_sampler_apply(sampler, C.byref(self.array))

    def tokens(self) -> list[TokenData]:
        return [self.array.data[i] for i in range(self.array.size)]

    def kept(self) -> list[int]:
        return sorted(t.id for t in self.tokens() if t.logit > float("-inf"))

    def chosen(self) -> int:
        return self.array.data[self.array.selected].id


def logits(rng: random.Random, count: int) -> list[float]:
    spread = rng.choice([0.5, 1.5, 3.0])
    return [round(rng.gauss(0, spread), 3) for _ in range(count)]


def filters(c: C.CDLL, rng: random.Random) -> list[dict]:
    cases = []
    makers = {
        "typical": lambda: ([round(rng.uniform(0.05, 0.99), 2)], lambda p: c.llama_sampler_init_typical(p, 1)),
        "top_n_sigma": lambda: ([round(rng.uniform(0.2, 3.0), 2)], c.llama_sampler_init_top_n_sigma),
        # a probability of 1: always
        "xtc": lambda: ([round(rng.uniform(0.01, 0.4), 3)], lambda t: c.llama_sampler_init_xtc(1.0, t, 1, 1)),
    }
    for name, maker in makers.items():
        for _ in range(40):
            parameters, make = maker()
            values = logits(rng, rng.choice([2, 5, 30]))
            row, sampler = Row(values), make(*parameters)
            row.apply(c, sampler)
            c.llama_sampler_free(sampler)
            cases.append({"sampler": name, "parameters": parameters, "logits": values, "kept": row.kept()})
    return cases


def mirostat(c: C.CDLL, rng: random.Random) -> list[dict]:
    runs = []
    for number in range(12):
        # version 1 overflows in llama.cpp if it would keep more than 2^31 tokens, so its target is low
        version, eta = 1 + number % 2, rng.choice([0.1, 0.5])
        tau, count = rng.choice([0.5, 1.0, 1.5] if version == 1 else [1.0, 2.5, 5.0]), rng.choice([20, 60])
        sampler = (c.llama_sampler_init_mirostat(count, number, tau, eta, 100) if version == 1
                   else c.llama_sampler_init_mirostat_v2(number, tau, eta))
        steps = []
        for _ in range(8):
            values = [round(rng.gauss(0, 3), 3) for _ in range(count)] if version == 1 else logits(rng, count)
            row = Row(values)
            row.apply(c, sampler)
            steps.append({"logits": values, "kept": row.kept(), "chosen": row.chosen()})
            c.llama_sampler_accept(sampler, row.chosen())
        c.llama_sampler_free(sampler)
        runs.append({"version": version, "tau": tau, "eta": eta, "steps": steps})
    return runs


def dry(c: C.CDLL, vocab: int, size: int, rng: random.Random, texts: list[list[int]], breakers: list[str]) -> list[dict]:
    cases = []
    for tokens in texts:
        parameters = {"multiplier": rng.choice([0.8, 1.0, 2.5]), "base": rng.choice([1.0, 1.75, 3.0]),
                      "allowed_length": rng.choice([1, 2, 3]), "last_n": rng.choice([4096, 4096, 20, len(tokens)])}
        if breakers:
            parameters["breakers"] = breakers
        names = (C.c_char_p * max(1, len(breakers)))(*(b.encode() for b in breakers))
        sampler = c.llama_sampler_init_dry(vocab, parameters["multiplier"], parameters["base"],
                                           parameters["allowed_length"], parameters["last_n"], names, len(breakers))
        for token in tokens:
            c.llama_sampler_accept(sampler, token)
        row = Row([0.0] * size)
        row.apply(c, sampler)
        c.llama_sampler_free(sampler)
        penalties = sorted((t.id, round(-t.logit, 4)) for t in row.tokens() if t.logit != 0.0)
        cases.append({"parameters": parameters, "tokens": tokens, "penalties": penalties})
    return cases


def main() -> None:
    library = Library(Path(os.environ["TERN_LLAMA_LIB"]))
    c, rng = library.c, random.Random(18)
    for name, (restype, argtypes) in SIGNATURES.items():
        function = getattr(c, name)
        function.restype, function.argtypes = restype, argtypes
    params = c.llama_model_default_params()
    params.vocab_only = True
    model = c.llama_model_load_from_file(str(STORIES).encode(), params)
    vocab = c.llama_model_get_vocab(model)
    size = c.llama_vocab_n_tokens(vocab)
    random_texts = [[rng.randrange(3, 7) for _ in range(rng.randrange(2, 60))] for _ in range(40)]
    recorded = {"filters": filters(c, rng), "mirostat": mirostat(c, rng),
                "dry": dry(c, vocab, size, rng, random_texts, [])}

    def tokenize(text: str) -> list[int]:
        raw = text.encode()
        ids = (C.c_int32 * (len(raw) + 8))()
        return list(ids[:c.llama_tokenize(vocab, raw, len(raw), ids, len(ids), False, False)])

    pieces = ["Tom said: \"Look at the dog!\"", "\n", "the red ball", " and then", ". She ran to the park", " *hop* ", "\n\n"]
    story_texts = [tokenize("".join(rng.choice(pieces) for _ in range(rng.randrange(3, 12)))) for _ in range(40)]
    with_breakers = [case for breakers in (["\n", ":", "\"", "*"], [". She", "and then"])
                     for case in dry(c, vocab, size, rng, story_texts, breakers)]
    for path, value in zip(sys.argv[1:], (recorded, with_breakers)):
        Path(path).write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
