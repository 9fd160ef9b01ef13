"""Models of the tests, and the command, whose answers are those of the Rust library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tern_llm import Model

DATA = os.environ.get("TERN_TEST_DATA")


def data(name: str) -> str:
    """A file of the test data."""
    path = Path(DATA or "", name)
    if not DATA or not path.exists():
        pytest.skip(f"skipped: {name} is not in TERN_TEST_DATA")
    return str(path)


@pytest.fixture(scope="session")
def stories() -> Model:
    return Model("stories", device="cpu")


@pytest.fixture(scope="session")
def smollm_file() -> str:
    return data("smollm2-135m-instruct-q4_1.gguf")


@pytest.fixture(scope="session")
def smollm(smollm_file: str) -> Model:
    return Model(smollm_file, device="cpu", context=1024, max_num_seqs=8)


@pytest.fixture(scope="session")
def minilm() -> str:
    return data("all-minilm-l6-v2")


@pytest.fixture(scope="session")
def tern() -> Callable[..., str]:
    """Runs the command of the wheel and returns what it printed."""

    def run(*args: str, text: str = "") -> str:
        command = [str(Path(sys.executable).with_name("tern")), *args]
        done = subprocess.run(command, capture_output=True, text=True, input=text, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
