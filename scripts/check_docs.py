#!/usr/bin/env python3
"""Checks that links of the documentation lead somewhere, and that the listings of ARCHITECTURE.md are those of the source.

    scripts/check_docs.py

A link is right if its file exists and has the heading of its anchor. A listing shows traits and structs without comments,
private fields and bodies of methods, in the order of the source. Prints each fault, and fails if there are any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".git", "target", "shared", "node_modules"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ITEM = re.compile(r"^pub (trait|struct) (\w+)[^{;]*\{", re.MULTILINE)
ATTRIBUTE = re.compile(r"#\[[^\]]*\]")
COMMENT = re.compile(r"(?:^\s*|\s)//[^\n]*", re.MULTILINE)


def text_lines(text):
    """Numbered lines of a Markdown text outside of code blocks, without inline code."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "", line)


def anchors(text):
    """The anchors of the headings of a Markdown text, as GitHub makes them."""
    found = {}
    code = False
    for line in text.splitlines():
        code ^= line.startswith("```")
        if not code and (heading := re.match(r"#+ (.*)", line)):
            name = re.sub(r"[^\w\- ]", "", heading.group(1).lower()).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {name if count == 0 else f"{name}-{count}" for name, last in found.items() for count in range(last + 1)}


def link_faults(path, text):
    """What is wrong with the links of a Markdown file, and their number."""
    faults, count = [], 0
    for number, line in text_lines(text):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            file, _, anchor = target.partition("#")
            to = path.parent / file if file else path
            if not to.exists():
                faults.append(f"{number}: {target}: missing file")
            elif anchor and anchor not in anchors(text if to == path else to.read_text()):
                faults.append(f"{number}: {target}: missing heading")
    return faults, count


def body(text, start):
    """The text from `start`, which is inside of braces, to the brace that closes them."""
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    raise ValueError("a brace is not closed")


def members(kind, text):
    """The methods of a trait, or the public fields of a struct, one line each."""
    text = ATTRIBUTE.sub("", text)
    if kind == "struct":
        # a comma inside of brackets or parentheses does not end a field
        parts, depth = [""], 0
        for c in text:
            depth += (c in "([{<") - (c in ")]}>")
            if c == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += c
        fields = (" ".join(part.split()) for part in parts)
        return [field for field in fields if field.startswith("pub ")]
    methods, at = [], 0
    while found := re.compile(r"[;{]").search(text, at):
        head = " ".join(text[at:found.start()].split())
        methods.append(head.replace("( ", "(").replace(", )", ")"))
        at = found.end()
        if found.group() == "{":
            at += len(body(text, at)) + 1
    return methods


def items(text, names=None):
    """The public traits and structs of a Rust text by name, all or some."""
    text = COMMENT.sub("", text)
    found = (m for m in ITEM.finditer(text) if names is None or m.group(2) in names)
    return {m.group(2): members(m.group(1), body(text, m.end())) for m in found}


def listing_faults(listed, source):
    """Differences between items of the documentation and those of the source, which may have several of one name."""
    faults = []
    for name, have in listed.items():
        want = source.get(name, [])
        if have in want:
            continue
        faults += [f"{name}: not in the source"] if not want else []
        for lines in want[:1]:
            faults += [f"{name}: not listed: {line}" for line in lines if line not in have]
            faults += [f"{name}: not in the source: {line}" for line in have if line not in lines]
            faults += [f"{name}: other order"] if sorted(lines) == sorted(have) else []
    return faults


def check_itself():
    """The checks find what they are for."""
    trait = "pub trait Device: Send {\n    /// Doc, with ; and {\n    fn name(&self) -> String;\n    fn fast(&self) -> bool {\n        { true }\n    }\n}\n"
    have = items("pub trait Device: Send {\n    fn name(&self) -> String;\n    fn fast(&self) -> bool;\n}\n")
    want = {name: [lines] for name, lines in items(trait).items()}
    assert listing_faults(have, want) == [], listing_faults(have, want)
    more = {"Device": [*want["Device"]]}
    more["Device"][0] = [*more["Device"][0], "fn new(&self)"]
    assert listing_faults(have, more) == ["Device: not listed: fn new(&self)"]
    assert items("pub struct S {\n    pub a: fn(x: u8, y: u8), // one\n    b: u8,\n}\n") == {"S": ["pub a: fn(x: u8, y: u8)"]}
    page = "# A b\n## C, d\n## C, d\n[x](#c-d-1) [y](#c-d-2) [z](missing.md) `[w](no.md)`\n"
    faults, count = link_faults(ROOT / "README.md", page)
    assert (len(faults), count) == (2, 3), faults


def main():
    check_itself()
    faults, links = [], 0
    for path in sorted(ROOT.rglob("*.md")):
        name = path.relative_to(ROOT)
        if SKIPPED_FOLDERS.isdisjoint(name.parts):
            found, count = link_faults(path, path.read_text())
            links += count
            faults += [f"{name}:{fault}" for fault in found]
    blocks = re.findall(r"^```rust\n(.*?)^```", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = items("".join(blocks))
    source = {}
    for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        for name, lines in items(path.read_text(), listed).items():
            source.setdefault(name, []).append(lines)
    faults += [f"ARCHITECTURE.md: {fault}" for fault in listing_faults(listed, source)]
    faults += [f"ARCHITECTURE.md: no listing of {name}" for name in ("Backend", "Graph", "Quant") if name not in listed]
    print(*faults, sep="\n", end="\n" if faults else "")
    if faults:
        sys.exit(f"{len(faults)} faults")
    print(f"{links} links, {len(listed)} listings")


if __name__ == "__main__":
    main()
