#!/usr/bin/env python3
"""Checks that help texts, messages, comments and the documentation use the plain terms
of the glossary (CONTRIBUTING.md).

    scripts/check_words.py [TERN]

Reads the prose of the Markdown files, the string literals of all crates outside of tests, the
comments of all Rust files, kernels and scripts, the names of files, and, if TERN is the path of the
binary, the help of all its commands. Comments also have a maximum width. Prints each hit with an
alternative, and fails if there are any.
"""

import ast
import io
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

UNITS = "second|step|row|token|block|thread|request|sequence|line|layer|page|slot|weight|record|phase|warp|lane|head|core|run"
COUNTED = "one|two|three|four|eight|bits?|bytes?|tokens?|times|launch(?:es)?|milliseconds|seconds|rows|values|scales?|span"

# What follows the word if it is about a place.
PLACES = "nginx|(?:an?|the|this|such an?) (?:\\w+ )?(?:proxy|server|handle|link|symlink|folder|barrier|document)"

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
    (rf"(?<!wait )(?<!waits )(?<!furthest )(?<!step )behind(?! (?:{PLACES}))", "after, beyond"),
    (r"no such wish|as long as it does|(?<=: )there (?:is|are) none", "none, no limit, must not be empty"),
]
PATTERN = re.compile("|".join(rf"(?P<w{i}>\b(?:{pattern})(?!\w))" for i, (pattern, _) in enumerate(WORDS)), re.IGNORECASE)

# Names of files that say nothing about their subject, or that there was another one before.
NAMES = re.compile(r"(?:.*_)?(?:utils?|helpers?|misc|pub|v\d+)|new_.*|.*manager\d*")

# Folders whose comments and file names are not checked yet.
UNCHECKED = ("cuda",)

# Endings of files whose comments begin with slashes.
SLASHED = (".rs", ".cu", ".cuh", ".h")

# Maximum width of lines with comments, by the ending of the file.
WIDTH = {".rs": 110, ".cu": 120, ".cuh": 120, ".py": 110, "": 110}

# Literals that are not messages: patterns and tokens of models, words to fuzz with.
SKIPPED_SOURCES = ("crates/text/src/tokenizer/", "crates/fuzz/src/targets.rs")
SKIPPED_DOCS = ("docs/log",)

# A line of comments, or a comment after code, where the slashes may be in a literal.
COMMENT = re.compile(r"\s*//[/!]?(.*)|.*[;,{})\]] // (.*)")
# A command or code in a comment, or a link.
EXAMPLE = re.compile(r"\s*(?:#|//[/!]?) {4,}\S|.*https?://")
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
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "`", line)


def literals(path):
    """The sentences in the string literals of a Rust file, up to its tests;
    continued lines count separately."""
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


def blocks(lines):
    """Joins the texts of adjacent lines: (number of the first line, text)."""
    joined = []
    for number, text in lines:
        if joined and joined[-1][1] == number - 1 and text:
            joined[-1][1:] = [number, f"{joined[-1][2]} {text}"]
        elif text:
            joined.append([number, number, text])
    return [(first, text) for first, _, text in joined]


def comment_lines(path):
    """The comments of a source file, line by line, without their signs."""
    text = path.read_text()
    if path.suffix in SLASHED:
        code = False  # of an example
        for number, line in enumerate(text.splitlines(), 1):
            found = COMMENT.match(line)
            code ^= found is not None and (found.group(1) or "").strip().startswith("```")
            if found and not code and (found.group(2) is None or line[: found.start(2)].count('"') % 2 == 0):
                yield number, re.sub(r"`[^`]*`", "`", found.group(1) or found.group(2) or "").strip()
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#! ")
        tree = ast.parse(text)
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        for node in nodes:
            if ast.get_docstring(node):
                first = node.body[0].value
                yield from ((first.lineno + i, line.strip()) for i, line in enumerate(first.value.splitlines()))
    else:
        yield from ((number, line.lstrip("#! ")) for number, line in enumerate(text.splitlines(), 1) if line.startswith("#"))


def sources():
    """All Rust files, kernels and scripts whose comments are checked."""
    for suffix in ("rs", "cu", "cuh", "h"):
        for path in sorted((ROOT / "crates").rglob(f"*.{suffix}")):
            if path.relative_to(ROOT / "crates").parts[0] not in UNCHECKED:
                yield path
    yield from sorted(path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix in (".py", ""))


def fragments(text):
    """Sentences that are a genitive without its noun, such as "Of all layers."."""
    return [s for s in re.split(r"(?<=[.:;!?]) ", text) if re.fullmatch(r"Of (?!course)[^,]*[.:;]?", s)]


def wide_lines(path):
    """Lines with a comment that are wider than allowed; in scripts lines of comments only."""
    width = WIDTH.get(path.suffix)
    commented = {number for number, _ in comment_lines(path)}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        whole = path.suffix in SLASHED or line.lstrip().startswith("#")
        if width and len(line) > width and number in commented and whole and not EXAMPLE.match(line):
            yield number, len(line)


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


def check_itself():
    """The checks find what they are for, and nothing in plain sentences."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example.rs")

        def found(text):
            path.write_text(text)
            hits = [m.group() for _, words in blocks(comment_lines(path)) for m in PATTERN.finditer(words)]
            hits += [s for _, words in blocks(comment_lines(path)) for s in fragments(words)]
            return hits + [width for _, width in wide_lines(path)]

        assert found("/// Of a clamped activation.\nstruct X;\n") == ["Of a clamped activation."]
        assert found("/// Of the rest, half goes to the first prompt.\n/// Those of all layers.\n") == []
        assert found("//! It has a cache of its\n//! own.\n") == ["of its own"]
        assert found("let x = 1; // so many\nlet y = \"; // so many\";\n") == ["so many"]
        assert found("/// The norm behind a linear, a server behind a proxy.\n") == ["behind"]
        assert found("/// ```\n/// // so many\n/// ```\nfn f() {}\n") == []
        assert found(f"// {'x' * 110}\n    // {'x' * 110}\n") == [113, 117]
    assert [n for n in ("utils", "new_pages", "ring_v2", "pages", "pull", "value_memory") if NAMES.fullmatch(n)] == ["utils", "new_pages", "ring_v2"]


def main():
    check_itself()
    texts = []
    markdown = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    markdown += sorted(path for path in (ROOT / "docs").rglob("*.md") if str(path.parent.relative_to(ROOT)) not in SKIPPED_DOCS)
    for path in markdown:
        texts += [(f"{path.relative_to(ROOT)}:{number}", text) for number, text in blocks(prose(path))]
    for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        name = str(path.relative_to(ROOT))
        if "tests" in path.stem or name.startswith(SKIPPED_SOURCES):
            continue
        texts += [(f"{name}:{number}", text) for number, text in literals(path)]
    hits = 0
    for path in sources():
        name = path.relative_to(ROOT)
        texts.append((f"{name}, its name", path.stem.replace("_", " ")))
        if NAMES.fullmatch(path.stem):
            hits += 1
            print(f"{name}: a name that does not say what is in the file")
        for number, text in blocks(comment_lines(path)):
            texts.append((f"{name}:{number}", text))
            for fragment in fragments(text):
                hits += 1
                print(f"{name}:{number}: \"Of ...\" (a noun and its verb): {fragment[:140]}")
        for number, width in wide_lines(path):
            hits += 1
            print(f"{name}:{number}: {width} columns (at most {WIDTH[path.suffix]} with a comment)")
    if len(sys.argv) > 1:
        texts += list(help_texts(sys.argv[1]))
    for place, text in texts:
        for match in PATTERN.finditer(text):
            hits += 1
            instead = WORDS[int(match.lastgroup[1:])][1]
            at = max(match.start() - 60, 0)
            print(f"{place}: \"{match.group()}\" ({instead}): {text[at:match.end() + 60].strip()}")
    if hits:
        sys.exit(f"{hits} hits: words that the glossary replaces, fragments, wide lines")


if __name__ == "__main__":
    main()
