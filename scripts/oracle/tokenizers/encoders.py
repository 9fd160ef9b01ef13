#!/usr/bin/env python3
"""Records the tokens of texts and pairs by the `tokenizers` library, with the kinds of
`tokenizer.json` that encoders have.

    encoders.py        into crates/text/tests/encoders.json

The vocabulary is that of `crates/text/tests/unigram`: as it is for Unigram, and for WordPiece with `##`
before pieces inside a word. A fixture has per kind the `tokenizer.json` without its vocabulary and without
the table of the normalizer, texts: [[text, ids]] and pairs: [[first, second, ids]], with the tokens at the
ends. Needs tokenizers from PyPI.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tokenizers import Tokenizer

TESTS = Path(__file__).resolve().parents[3] / "crates" / "text" / "tests"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "", " ", "   ", "a", "Hello world", "  leading and   inner  spaces  ", " one", "end ", "The quick brown fox jumps over the lazy dog.",
    "Größe, straße, café and naïve", "ﬁne Ａｂｃ １２３ ½ ² ™ …", "日本語のテキストと漢字", "Привет, мир!", "emoji 😀😀 and 👩‍👩‍👧", "tab\tand\nnewline\r\nend",
    "zero\u200bwidth\u00a0space\u3000wide", "don't stop; it's 12,345.67% of \"it\"", "e\u0301 o\u0308 ΣΑΣ ǅ", "\u0001\u0002 control", "x" * 99, "x" * 101,
    "the " + "antidisestablishmentarianism" * 4, "a [MASK] b", "a<mask>b </s>", "____====----....!!!!????", "\ufffd broken \u2028 line",
]
PAIRS = [["a query", "a document of it"], ["", ""], ["the  end ", " begins"]]
MASK = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
MAP = {"type": "Precompiled", "precompiled_charsmap": ""}


def template(first: str, last: str, between: list[str]) -> dict:
    special = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    part = lambda name: {"Sequence": {"id": name, "type_id": 0}}
    ids = {"[CLS]": 2, "[SEP]": 3, "<s>": 0, "</s>": 2}
    return {
        "type": "TemplateProcessing", "single": [special(first), part("A"), special(last)],
        "pair": [special(first), part("A"), *map(special, between), part("B"), special(last)],
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in (first, last)},
    }


def unigram(normalizer: dict, pre: dict) -> dict:
    added = [{"id": i, "content": t, **MASK} for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])]
    return {
        "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": template("<s>", "</s>", ["</s>", "</s>"]),
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": False},
    }


def wordpiece(lowercase: bool, strip: bool | None, post: dict) -> dict:
    return {
        "added_tokens": [{"id": i, "content": t, **MASK} for i, t in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": strip, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": post,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }


KINDS = {
    "words": unigram(MAP, {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}),
    "merged": unigram({"type": "Sequence", "normalizers": [MAP, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}, METASPACE),
    "stripped": unigram({"type": "Sequence", "normalizers": [
        MAP, {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]}, METASPACE),
    "uncased": wordpiece(True, None, template("[CLS]", "[SEP]", ["[SEP]"])),
    "cased": wordpiece(False, None, {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}),
    "accents": wordpiece(True, False, template("[CLS]", "[SEP]", ["[SEP]"])),
}


def whole(kind: dict) -> dict:
    """The file itself."""
    vocab = json.loads((TESTS / "unigram" / "vocab.json").read_text())
    whole = json.loads(json.dumps(kind))
    if kind["model"]["type"] == "Unigram":
        table = base64.b64encode((TESTS / "unigram" / "nmt_nfkc.bin").read_bytes()).decode()
        whole = json.loads(json.dumps(whole).replace('"precompiled_charsmap": ""', f'"precompiled_charsmap": "{table}"'))
        whole["model"]["vocab"] = list(zip(vocab["pieces"], vocab["scores"]))
    else:
        spelled = [p[1:] if p.startswith("\u2581") else "##" + p for p, t in zip(vocab["pieces"], vocab["types"]) if t == 1 and p != "\u2581"]
        tokens = SPECIAL + list(dict.fromkeys(spelled))
        whole["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    return {"version": "1.0", "truncation": None, "padding": None, "decoder": None, **whole}


def main() -> None:
    kinds = {}
    for name, kind in KINDS.items():
        tokenizer = Tokenizer.from_str(json.dumps(whole(kind)))
        texts = [[text, tokenizer.encode(text).ids] for text in TEXTS]
        pairs = [[a, b, tokenizer.encode(a, b).ids] for a, b in PAIRS]
        kinds[name] = {"json": kind, "texts": texts, "pairs": pairs}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(kind, ensure_ascii=False, separators=(',', ':'))}" for name, kind in kinds.items())
    (TESTS / "encoders.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
