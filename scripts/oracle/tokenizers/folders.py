#!/usr/bin/env python3
"""Records the tokens of `tokenizer.json` files as the `tokenizers` library encodes
texts, without tokens at the ends.

    folders.py FOLDER        into crates/text/tests/folders.json

FOLDER has one folder per tokenizer (`tokenizers` of the test data). Needs tokenizers from PyPI.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

OUT = Path(__file__).resolve().parents[3] / "crates" / "text" / "tests" / "folders.json"
TEXTS = [
    "", " ", "   ", "\n", "\r\n\r\n \t\t x", " leading and trailing ", "don't I'LL we'Ve 'tis", "0 12 345 6789 1234567 ½ ٣",
    "中文 かな カナ 한국어 ไทย កាន់តែ", "🚀 😶‍🌫️ 🦙🇧🇬", "e\u0301\u0327 Vieê\u0301t \u0085\u00a0\u2028\u3000\ufeff", "fn main() { println!(\"{}\", 1 << 3); } // ☃",
    "____====----....!!!!????", "ΑΒΓ Привет, мир! Größe naïve Ǆ ﬁ Ⅷ", "The quick brown fox jumps over the lazy dog. 3.14159",
    "    if x:\n        return y\n\n\n# done", "a<s>b</s><|im_end|>", "<|endoftext|>x <think> y</think>\n",
]


def main() -> None:
    recorded = {}
    for path in sorted(Path(sys.argv[1]).glob("*/tokenizer.json")):
        tokenizer = Tokenizer.from_file(str(path))
        recorded[path.parent.name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(ids, separators=(',', ':'))}" for name, ids in recorded.items())
    OUT.write_text('{"texts": ' + json.dumps(TEXTS) + ',\n"tokens": {\n' + lines + "\n}}\n")
    print(f"{len(recorded)} tokenizers")


if __name__ == "__main__":
    main()
