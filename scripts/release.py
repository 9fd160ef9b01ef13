#!/usr/bin/env python3
"""Completes the folder of a release, which has the archives of scripts/package.py: install.sh, the formula for
Homebrew, the bill of materials, and SHA256SUMS.

    scripts/release.py FOLDER RELEASES [--homepage ADDRESS] [--partial]

RELEASES is the address from which the files will be downloaded. The formula needs the archives of all systems that
Homebrew has; with --partial it is omitted if some are missing.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def formula(folder, releases, homepage):
    """The formula, or the archives that it lacks."""
    text = (ROOT / "deploy/homebrew/tern.rb").read_text()
    missing = []

    def checksum(found):
        path = folder / f"tern-{VERSION}-{found[1]}.tar.gz"
        if not path.exists():
            missing.append(path.name)
            return ""
        return sha256(path)

    text = re.sub(r"@sha256 ([^@]+)@", checksum, text)
    text = text.replace("@releases@", releases).replace("@version@", VERSION).replace("@homepage@", homepage)
    return text.replace("; scripts/release.py fills it in", ""), missing


def materials():
    """The crates in the binary, as CycloneDX."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", ROOT / "Cargo.toml"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    first = next(package["id"] for package in found["packages"] if package["name"] == "tern-llm-cli")
    used, todo = set(), [first]
    while todo:
        node = todo.pop()
        if node not in used:
            used.add(node)
            # neither tests nor what only runs during the build
            linked = [d for d in nodes[node]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
            todo += [dependency["pkg"] for dependency in linked]
    sums = {
        (name, version): checksum
        for name, version, checksum in re.findall(
            r'^name = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"', lock(), re.M
        )
    }

    def component(package):
        name, version = package["name"], package["version"]
        facts = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
        if package["license"]:
            facts["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if (name, version) in sums:
            facts["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
        return facts

    components = sorted((component(packages[node]) for node in used - {first}), key=lambda c: (c["name"], c["version"]))
    about = {"component": {"type": "application", "name": "tern", "version": VERSION}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": components}


def lock():
    return (ROOT / "Cargo.lock").read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("releases")
    parser.add_argument("--homepage")
    parser.add_argument("--partial", action="store_true")
    args = parser.parse_args()
    text, missing = formula(args.folder, args.releases, args.homepage or args.releases)
    if not missing:
        (args.folder / "tern.rb").write_text(text)
    elif not args.partial:
        sys.exit(f"error: {args.folder}: the formula needs {', '.join(missing)}; --partial omits it")
    script = (ROOT / "deploy/install.sh").read_text()
    script = script.replace("@releases@", args.releases).replace("@version@", VERSION)
    (args.folder / "install.sh").write_text(script)
    (args.folder / f"tern-{VERSION}.cdx.json").write_text(json.dumps(materials(), indent=1) + "\n")
    files = sorted(path for path in args.folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    (args.folder / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    print(f"{args.folder}: {len(files)} files" + (f", without {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
