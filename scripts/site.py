#!/usr/bin/env python3
"""Makes the site of the documentation: collects the pages of docs/SUMMARY.md in a folder that mdBook builds.

    scripts/site.py FOLDER [--source ADDRESS]
    scripts/site.py --check

FOLDER/src has the pages at their paths in the repository, so that links between them work as they do there; links to
other files lead to --source, the address of the repository's files. If mdbook is installed, FOLDER/book is the
site. --check compares docs/SUMMARY.md with the pages that exist.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "docs/SUMMARY.md"
# the history is read in the repository
OMITTED = ["docs/log/", "docs/SUMMARY.md"]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
BOOK = """\
[book]
title = "Tern"
language = "en"
src = "src"

[output.html]
no-section-label = true
"""


def listed():
    """The pages of the summary, from the repository's root."""
    links = re.findall(r"\]\(([^)]+)\)", SUMMARY.read_text())
    return [os.path.normpath(f"docs/{link}") for link in links]


def faults():
    """What the summary lacks, and what it has that does not exist."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    found = {path for path in found if not any(path.startswith(name) for name in OMITTED)}
    pages = listed()
    wrong = [f"docs/SUMMARY.md: {page} is not listed" for page in sorted(found - set(pages))]
    wrong += [f"docs/SUMMARY.md: {page} does not exist" for page in pages if not (ROOT / page).exists()]
    return wrong + [f"docs/SUMMARY.md: {page} twice" for page in sorted(set(pages)) if pages.count(page) > 1]


def page_text(page, pages, source):
    """A page whose links to files that are no pages lead to the repository."""

    def link(found):
        file, _, anchor = found[2].partition("#")
        if re.match(r"[a-z]+:", found[2]) or not file:
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), file))
        is_page = path in pages or Path(path).suffix in (".png", ".svg")
        return found[0] if is_page else f"{found[1]}{source}/{path}{'#' + anchor if anchor else ''}{found[3]}"

    return LINK.sub(link, (ROOT / page).read_text())


def main():
    wrong = faults()
    if wrong:
        sys.exit("\n".join(f"error: {fault}" for fault in wrong))
    pages = listed()
    if sys.argv[1:] == ["--check"]:
        print(f"site: {len(pages)} pages")
        return
    folder = Path(sys.argv[1])
    source = sys.argv[3] if sys.argv[2:3] == ["--source"] else "https://example.invalid/tern"
    for page in pages:
        path = folder / "src" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page_text(page, pages, source))
    for picture in [*(ROOT / "docs").rglob("*.svg"), *(ROOT / "docs").rglob("*.png")]:
        path = folder / "src" / picture.relative_to(ROOT)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, path)
    # paths of the summary are relative to src
    summary = LINK.sub(lambda link: f"{link[1]}{os.path.normpath('docs/' + link[2])}{link[3]}", SUMMARY.read_text())
    (folder / "src/SUMMARY.md").write_text(summary)
    (folder / "book.toml").write_text(BOOK)
    print(f"{folder}: {len(pages)} pages")
    if shutil.which("mdbook"):
        subprocess.run(["mdbook", "build", folder], check=True)
    else:
        print("skipped: mdbook is not installed")


if __name__ == "__main__":
    main()
