#!/usr/bin/env python3
"""Records SentencePiece's tokens of texts, with a small Unigram vocabulary that it trains on another text.

    unigram.py wiki.test.raw crates/text/tests/unigram

Writes `vocab.json` (pieces, scores, token types of GGUF, texts and their ids) and `nmt_nfkc.bin`, the
normaliser's table. Needs `sentencepiece` from PyPI; training gives the same vocabulary every time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import sentencepiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
TEXTS = [
    "", " ", "a", "Hello world", "  leading and   inner  spaces  ", "The quick brown fox jumps over the lazy dog.",
    "Größe, straße, café and naïve", "ﬁne Ａｂｃ １２３ ½ ² ™ …", "日本語のテキストと漢字", "Привет, мир!", "emoji 😀😀 and 👩‍👩‍👧", "tab\tand\nnewline\r\nend",
    "zero\u200bwidth\u00a0space\u3000wide", "don't stop; it's 12,345.67% of \"it\"", "ⅷ ㌔ ﷺ", "e\u0301 o\u0308", "\u0001\u0002 control",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "\ufffd broken", "ﾊﾝｶｸ ｶﾞ", "x" * 300,
]


def field(message: bytes, number: int) -> bytes:
    """The first field of this number, which has a length, of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            size = varint()
            if key >> 3 == number:
                return message[at:at + size]
            at += size
        elif key & 7 == 0:
            varint()
        else:
            at += 4 if key & 7 == 5 else 8
    raise SystemExit(f"the model has no field {number}")


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text"
        lines = [line for line in source.read_text().splitlines() if len(line) > 40][:3000]
        text.write_text("\n".join(lines + TEXTS[5:12] * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=f"{scratch}/m", vocab_size=1500, model_type="unigram", character_coverage=0.995, num_threads=1,
            normalization_rule_name="nmt_nfkc", bos_id=0, pad_id=1, eos_id=2, unk_id=3, pad_piece="<pad>", user_defined_symbols=["<mask>"])
        model = sentencepiece.SentencePieceProcessor(model_file=f"{scratch}/m.model")
    ids = range(model.get_piece_size())
    kind = lambda i: CONTROL if model.is_control(i) else UNKNOWN if model.is_unknown(i) else USER_DEFINED if model.id_to_piece(i) == "<mask>" else NORMAL
    fixture = {
        "pieces": [model.id_to_piece(i) for i in ids], "scores": [round(model.get_score(i), 6) for i in ids], "types": [kind(i) for i in ids],
        "texts": [[text, model.encode(text)] for text in TEXTS],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "vocab.json").write_text(json.dumps(fixture, ensure_ascii=False, separators=(",", ":")).replace('"texts":[', '\n"texts":[\n') + "\n")
    (out / "nmt_nfkc.bin").write_bytes(field(field(model.serialized_model_proto(), 3), 2))


if __name__ == "__main__":
    main()
