#!/usr/bin/env python3
"""Checks that help texts, error messages and the documentation use the plain terms of the glossary (CONTRIBUTING.md).

    scripts/check_words.py [TERN]

Reads the prose of the Markdown files, the string literals of all crates outside of tests, and, if TERN is the path of the
binary, the help of all its commands. Prints each hit with an alternative, and fails if there are any.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

UNITS = "second|step|row|token|block|thread|request|sequence|line|layer|page|slot|weight|record|phase|warp|lane|head|core|run"
COUNTED = "one|two|three|four|eight|bits?|bytes?|tokens?|times|launch(?:es)?|milliseconds|seconds|rows|values|scales?|span"

# (pattern, what to write instead)
WORDS = [
    (r"whoever|nobody|somebody|anybody|everybody", "name it: the client, the thread, the sequence"),
    (r"so many|so-manieth", "the number, or its name"),
    (r"of (?:its|their|our|his) own", "its own, separate"),
    (r"speaks?|spoken|speaking", "decodes, generates, uses"),
    (r"hears?|believe[sd]?|promise[sd]?|sits? down|stands? up|lets? go", "what the code does"),
    (r"meets?|met", "uses, is multiplied by, waits at the barrier"),
    (r"(?:is|are|was|were) told|tells? apart|told apart", "is given, distinguishes"),
    (r"(?:leave|leaves|left|leaving) away", "omit"),
    (r"(?:is|are|was) not there|(?:is|are) there(?= *[.,;:|]| and | or |$)", "is missing, exists"),
    (r"wanted", "requested, expected, needed"),
    (r"where it is|where there is", "if it is, if there is"),
    (rf"(?:{COUNTED}) an? (?:{UNITS})", "per"),
    (r"rightly", "correctly"),
    (r"anew|for ever", "again, restart; without end"),
    (r"goes on|go on|went on", "continues"),
    (r"(?:gives?|gave|given|giving) (?:back|out)", "returns, frees"),
    (r"no such wish|as long as it does|(?<=: )there (?:is|are) none", "none, no limit, must not be empty"),
]
PATTERN = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})(?!\w))" for i, (pattern, _) in enumerate(WORDS)), re.IGNORECASE)

# Literals that are not messages: patterns and tokens of models, words to fuzz with.
SKIPPED_SOURCES = ("crates/text/src/tokenizer/", "crates/fuzz/src/targets.rs")
SKIPPED_DOCS = ("docs/log",)

LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def prose(path):
    """The lines of a Markdown file outside of code blocks, inline code and the glossary."""
    code = glossary = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            code = not code
        if line.startswith("## "):
            glossary = line == "## Glossary"
        if not code and not glossary and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "`", line)


def literals(path):
    """The sentences in the string literals of a Rust file, up to its tests; continued lines count separately."""
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("#[cfg(test)]"):
            return
        code = line.strip()
        if code.startswith("//"):
            continue
        if inside:
            code = '"' + code
        inside = code.endswith("\\") and code.replace('\\"', "").count('"') % 2 == 1
        for text in LITERAL.findall(code + ('"' if inside else "")):
            if " " in text:
                yield number, text


def help_texts(tern):
    """The help of a binary and of its commands, one line at a time."""
    def lines(args):
        return subprocess.run([tern, *args, "--help"], capture_output=True, text=True, check=True).stdout.splitlines()

    top = lines([])
    yield from (("tern --help", line) for line in top)
    commands = [m.group(1) for line in top if (m := re.match(r"  ([a-z]+)(?:\s|$)", line)) and m.group(1) != "help"]
    for command in commands:
        for line in lines([command]):
            yield f"tern {command} --help", line


def main():
    texts = []
    markdown = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    markdown += sorted(path for path in (ROOT / "docs").rglob("*.md") if str(path.parent.relative_to(ROOT)) not in SKIPPED_DOCS)
    for path in markdown:
        texts += [(f"{path.relative_to(ROOT)}:{number}", line) for number, line in prose(path)]
    for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        name = str(path.relative_to(ROOT))
        if "tests" in path.stem or name.startswith(SKIPPED_SOURCES):
            continue
        texts += [(f"{name}:{number}", text) for number, text in literals(path)]
    if len(sys.argv) > 1:
        texts += list(help_texts(sys.argv[1]))
    hits = 0
    for place, text in texts:
        for match in PATTERN.finditer(text):
            hits += 1
            instead = WORDS[int(match.lastgroup[1:])][1]
            print(f"{place}: \"{match.group()}\" ({instead}): {text.strip()[:140]}")
    if hits:
        sys.exit(f"{hits} uses of words that the glossary replaces")


if __name__ == "__main__":
    main()
