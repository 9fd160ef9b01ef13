#!/usr/bin/env python3
"""Runs the commands of the first pages, docs/start: each page in one shell and an empty folder.

    scripts/pages_test.py TERN [PAGE]

Blocks marked `sh` run; a command that cannot is indented, and a sentence above it says why. `smollm2` is the file of
TERN_TEST_DATA: pages that need it are skipped without it. A port of this machine replaces 8080. Blocks of Python
and Rust run in the tests of the package and of the library.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs/start").glob("*.md"))
# what a page prints, so that a command which does nothing fails
PRINTED = {
    "run.md": ["there was", "smollm2", "stories"],
    "serve.md": ["chat.completion", "vllm:num_requests_running"],
    "scale.md": ["3 succeeded", "answered before", "3 out.jsonl"],
    "quantize.md": ["qwen3", "pure.gguf", "perplexity"],
    "hack.md": ["qwen3", "linear q4_k"],
}
# seconds of a page, on a machine that does other things as well
LIMIT = 600


def known_model(cache):
    """Puts the file where `tern pull smollm2` does; false if the test data is missing."""
    file = Path(os.environ.get("TERN_TEST_DATA", ""), "smollm2-135m-instruct-q4_1.gguf")
    if "TERN_TEST_DATA" not in os.environ or not file.exists():
        return False
    source = (ROOT / "crates/hub/src/known.rs").read_text()
    known = source[source.index('name: "smollm2"') :]
    name, digest = (re.search(rf'{member}: "(.+)"', known).group(1) for member in ("file", "sha256"))
    folder = cache / "tern/models"
    folder.mkdir(parents=True)
    (folder / f"{digest[:16]}-{name}").symlink_to(file)
    return True


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(page, tern):
    """The commands of a page; returns what is wrong."""
    text = page.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    if not blocks:
        return None
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        has_model = known_model(home / "cache")
        if re.search(r"\bsmollm2\b", "".join(blocks)) and not has_model:
            print(f"skipped: {page.name}: no smollm2-135m-instruct-q4_1.gguf in TERN_TEST_DATA")
            return None
        (home / "bin").mkdir()
        (home / "bin/tern").symlink_to(tern)
        port = free_port()
        script = "set -euo pipefail\n" + "".join(blocks)
        script = script.replace("localhost:8080", f"localhost:{port}").replace("tern serve ", f"tern serve --port {port} ")
        keep = {key: os.environ[key] for key in ("LANG", "TERN_TEST_DATA") if key in os.environ}
        environment = {
            **keep, "HOME": name, "XDG_CACHE_HOME": f"{name}/cache", "HF_HUB_OFFLINE": "1",
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        }
        (home / "work").mkdir()
        done = subprocess.Popen(
            ["bash", "-c", script], cwd=home / "work", env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        try:
            output, _ = done.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, 9)
            output, _ = done.communicate()
            return f"took more than {LIMIT} s:\n{output}"
    if done.returncode:
        return f"exit code {done.returncode}:\n{output}"
    missing = [words for words in PRINTED[page.name] if words not in output]
    return f"{missing} are not printed:\n{output}" if missing else None


def main():
    tern = Path(sys.argv[1]).resolve()
    if not shutil.which("curl"):
        sys.exit("error: curl is not installed: docs/start/serve.md needs it")
    pages = [page for page in PAGES if not sys.argv[2:] or page.name in sys.argv[2:]]
    for page in pages:
        begin = time.monotonic()
        fault = run(page, tern)
        if fault:
            sys.exit(f"error: {page.relative_to(ROOT)}: {fault}")
        print(f"{page.relative_to(ROOT)}: {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
