"""Records the masks of llama.cpp's GBNF grammars along random texts, for the tests of crates/grammar.

Use:  oracle/bin/python scripts/oracle/llama/grammar_masks.py crates/grammar/tests/grammar/gbnf

Writes masks.json: [{grammar, steps: [{allowed, hash, token}]}] in the vocabulary of the story model.
`allowed` counts the tokens that may follow, `hash` is the FNV-1a hash of their ids; `token` is the one that
follows, null at the end. Left out are tokens whose text begins with `<` and ends with `>`, because llama.cpp
takes control tokens for text, and bytes that are never part of UTF-8, which it allows in some classes. After
some bytes it allows spellings that UTF-8 excludes: these do not follow.
"""

from __future__ import annotations

import ctypes as C
import json
import os
import random
import sys
from pathlib import Path

from libllama import Library
from samplers import SIGNATURES, STORIES, Row


def fnv(ids: list[int]) -> int:
    value = 0xCBF29CE484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def main() -> None:
    folder = Path(sys.argv[1])
    c = Library(Path(os.environ["TERN_LLAMA_LIB"])).c
    c.llama_sampler_init_grammar.restype = C.c_void_p
    c.llama_sampler_init_grammar.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p]
    for name in ("llama_sampler_apply", "llama_sampler_accept", "llama_sampler_free"):
        function = getattr(c, name)
        function.restype, function.argtypes = SIGNATURES[name]
    params = c.llama_model_default_params()
    params.vocab_only = True
    vocab = c.llama_model_get_vocab(c.llama_model_load_from_file(str(STORIES).encode(), params))
    size = c.llama_vocab_n_tokens(vocab)
    c.llama_vocab_get_text.restype, c.llama_vocab_get_text.argtypes = C.c_char_p, [C.c_void_p, C.c_int32]
    texts = [c.llama_vocab_get_text(vocab, i) for i in range(size)]
    ordinary = [i for i in range(size) if not (texts[i].startswith(b"<") and texts[i].endswith(b">")
                                              and not texts[i].startswith(b"<0x"))]
    byte = {chr(value).encode(): value for value in range(0xAE, 0x100)}  # as byte-level vocabularies spell them
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    loose = {0xE0, 0xED, 0xF0, 0xF4}
    ordinary = [i for i in ordinary if byte.get(texts[i]) not in never]
    ends = {i for i in range(size) if c.llama_vocab_is_eog(vocab, i)}
    ordinary = [i for i in ordinary if i not in ends]
    recorded = []
    # llama.cpp rejects each first byte of a character that a class excludes, with all that begin with it
    for path in sorted(set(folder.glob("*.gbnf")) - {folder / "list.gbnf"}):
        for seed in range(6):
            rng = random.Random(f"{path.name} {seed}")
            sampler = c.llama_sampler_init_grammar(vocab, path.read_bytes(), b"root")
            assert sampler, path
            steps = []
            while len(steps) < 40:
                row = Row([0.0] * size)
                row.apply(c, sampler)
                kept = set(row.kept())
                tokens = [i for i in ordinary if i in kept]
                step = {"allowed": len(tokens), "ends": bool(kept & ends), "hash": str(fnv(tokens)), "token": None}
                steps.append(step)
                if not tokens or (step["ends"] and rng.random() < 0.2):
                    break
                # short tokens and punctuation more often: others fill a line
                short = [i for i in tokens if len(texts[i]) < 3]
                marks = [i for i in tokens if texts[i].isascii() and not any(97 <= b < 123 for b in texts[i].lower())]
                strict = [i for i in tokens if byte.get(texts[i]) not in loose]
                preferred = rng.choice([short, marks, marks, tokens])
                step["token"] = rng.choice([i for i in preferred if i in strict] or strict or tokens)
                c.llama_sampler_accept(sampler, step["token"])
            c.llama_sampler_free(sampler)
            recorded.append({"grammar": path.name, "steps": steps})
    (folder / "masks.json").write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
