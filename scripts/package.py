#!/usr/bin/env python3
"""Packs a binary of tern with its man pages, completions and licences: an archive, and a package for Debian.

    scripts/package.py BINARY FOLDER [--target TRIPLE] [--pages TERN]

Writes FOLDER/tern-VERSION-TRIPLE.tar.gz (.zip for Windows) and, for Linux, FOLDER/tern_VERSION_ARCH.deb. The same
inputs give the same bytes; SOURCE_DATE_EPOCH is the time of the files. --pages is a binary that this machine can
run, for the pages of one that was built for another.
"""

import argparse
import gzip
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
TIME = int(os.environ.get("SOURCE_DATE_EPOCH", 946684800))
# Debian's names of processors
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# shell, and where it looks for completions below a prefix
COMPLETIONS = [
    ("bash", "share/bash-completion/completions/tern"),
    ("zsh", "share/zsh/site-functions/_tern"),
    ("fish", "share/fish/vendor_completions.d/tern.fish"),
]
DOCUMENTS = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"]


def ran(command):
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        text = getattr(error, "stderr", b"") or b""
        sys.exit(f"error: {command[0]} {' '.join(map(str, command[1:]))}: {text.decode().strip() or error}")


def pages(tern):
    """Man pages and completions, which the command writes itself."""
    with tempfile.TemporaryDirectory() as folder:
        ran([tern, "man", folder])
        files = {f"share/man/man1/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}
    for shell, path in COMPLETIONS:
        files[path] = ran([tern, "completions", shell])
    return files


def tar(files, top):
    """A tar file of files by path, whose binaries are below bin/ and whose folders are listed."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        folders = {f"{top}/{parent}" for path in files for parent in Path(path).parents}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, TIME
            archive.addfile(entry)
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{path}")
            executable = "bin/" in path or path in ("postinst", "prerm", "postrm")
            entry.size, entry.mtime, entry.mode = len(data), TIME, 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return written.getvalue()


def zipped(files, top):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(f"{top}/{path}"), data, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def glibc(binary):
    """The newest version of the C library that a binary names."""
    found = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(2\.\d+)", binary)}
    return ".".join(map(str, max(found))) if found else None


def deb(binary, files, architecture):
    """A package for Debian: an ar archive of a version and two tar files."""
    folder = ROOT / "deploy/debian"
    installed = {f"usr/{path}": data for path, data in files.items()}
    for path in [path for path in installed if path.startswith("usr/share/man/")]:
        installed[path + ".gz"] = gzip.compress(installed.pop(path), 9, mtime=0)
    documents = "usr/share/doc/tern-llm"
    for name in DOCUMENTS:
        installed.pop(f"usr/share/doc/tern/{name}")
    installed[f"{documents}/changelog.gz"] = gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), 9, mtime=0)
    licence = (ROOT / "LICENSE-MIT").read_text()
    installed[f"{documents}/copyright"] = (folder / "copyright").read_text().replace("@mit@", licence).encode()
    service = (ROOT / "deploy/tern.service").read_text().replace("/usr/local/bin/tern ", "/usr/bin/tern ")
    # the notes of its first lines are those for an installation by hand
    service = "# " + service[service.index("/etc/tern/tern.env may also") :]
    installed["lib/systemd/system/tern.service"] = service.encode()
    control = (folder / "control").read_text()
    size = sum(len(data) for data in installed.values()) // 1024
    needs = glibc(binary)
    for mark, value in [
        ("version", VERSION), ("architecture", architecture), ("size", str(size)),
        ("libc", f"libc6 (>= {needs})" if needs else "libc6"),
    ]:
        control = control.replace(f"@{mark}@", value)
    about = {"control": control.encode()}
    about |= {name: (folder / name).read_bytes() for name in ("postinst", "prerm", "postrm")}
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", gzip.compress(tar(about, "."), 9, mtime=0)),
        ("data.tar.gz", gzip.compress(tar(installed, "."), 6, mtime=0)),
    ]
    written = b"!<arch>\n"
    for name, data in members:
        written += f"{name:<16}{TIME:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default=f"{platform.machine()}-unknown-linux-gnu")
    parser.add_argument("--pages", type=Path)
    args = parser.parse_args()
    if not args.binary.is_file():
        sys.exit(f"error: {args.binary}: no such file; build it with `cargo build --release`")
    windows = "windows" in args.target
    binary = args.binary.read_bytes()
    files = {"bin/tern.exe" if windows else "bin/tern": binary}
    files |= pages((args.pages or args.binary).resolve())
    files |= {f"share/doc/tern/{name}": (ROOT / name).read_bytes() for name in DOCUMENTS}
    args.folder.mkdir(parents=True, exist_ok=True)
    name = f"tern-{VERSION}-{args.target}"
    written = {}
    if windows:
        written[f"{name}.zip"] = zipped(files, name)
    else:
        written[f"{name}.tar.gz"] = gzip.compress(tar(files, name), 6, mtime=0)
    if "linux-gnu" in args.target:
        architecture = ARCHITECTURES.get(args.target.split("-")[0])
        if not architecture:
            sys.exit(f"error: --target {args.target}: expected one of {', '.join(ARCHITECTURES)} for a package for Debian")
        written[f"tern_{VERSION}_{architecture}.deb"] = deb(binary, files, architecture)
    for name, data in written.items():
        (args.folder / name).write_bytes(data)
        print(f"{args.folder / name}: {len(data) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
