"""Stubs, tables, docstrings and the page of documentation, compared with what there is."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import tern_llm
from tern_llm import _native
from tern_llm.options import LoadOptions, Options

PACKAGE = Path(tern_llm.__file__).parent


def parameters(function: ast.FunctionDef) -> list[str]:
    """The names of the parameters of a stub but self."""
    return [one.arg for one in function.args.args if one.arg != "self"]


def test_the_stub_is_the_module():
    stub = ast.parse((PACKAGE / "_native.pyi").read_text())
    known = set()
    for node in stub.body:
        if isinstance(node, ast.AnnAssign):
            known.add(node.target.id)
        elif isinstance(node, ast.FunctionDef):
            known.add(node.name)
            assert list(inspect.signature(getattr(_native, node.name)).parameters) == parameters(node)
        elif isinstance(node, ast.ClassDef):
            known.add(node.name)
            kind = getattr(_native, node.name)
            members = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            if issubclass(kind, Exception):
                assert [base.__name__ for base in kind.__bases__] == [base.id for base in node.bases]
                continue
            assert {one.name for one in members} == {name for name in vars(kind) if not name.startswith("_")}
            for one in members:
                decorators = [decorator.id for decorator in one.decorator_list]
                member = inspect.getattr_static(kind, one.name)
                assert isinstance(member, types.GetSetDescriptorType) == (decorators == ["property"]), (
                    one.name
                )
                if decorators != ["property"]:
                    names = list(inspect.signature(getattr(kind, one.name)).parameters)
                    assert [name for name in names if name != "self"] == parameters(one), one.name
    public = {name for name in vars(_native) if not name.startswith("__")} | {"__version__"}
    assert known == public
    assert (PACKAGE / "py.typed").exists()


def test_options_are_those_of_the_engine():
    assert list(LoadOptions.__annotations__) == _native.LOAD_OPTIONS
    given = list(Options.__annotations__)
    assert given[-len(_native.SAMPLING_PARAMETERS) :] == _native.SAMPLING_PARAMETERS
    # each is a parameter that the server knows
    model = tern_llm.Model("stories", device="cpu")
    own = {"json_schema", "regex", "choice"}
    for name in set(given) - own:
        try:
            model.openai(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], name: {"wrong": 1}}
            )
        except tern_llm.RequestError as error:
            assert "unknown" not in str(error), (name, str(error))


def modules() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "__main__.py" or "ray" in path.relative_to(PACKAGE).parts:
            continue
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names.append(".".join(["tern_llm", *(part for part in parts if part != "__init__")]))
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def pages() -> list[Path]:
    return [Path(page) for page in os.environ.get("TERN_PYTHON_PAGES", "").split(os.pathsep) if page]


def test_the_pages_of_documentation_run(tmp_path, smollm_file, minilm):
    """Every block of Python of docs/python.md and docs/start/python.md, in one process per block."""
    if not pages():
        pytest.skip("skipped: TERN_PYTHON_PAGES is not set")
    blocks = [
        (page, block)
        for page in pages()
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len(blocks) >= 10 and len({page for page, _ in blocks}) == len(pages())
    start = "import warnings; warnings.simplefilter('error')\n"
    for page, block in blocks:
        text = block.replace('"smollm2"', repr(smollm_file)).replace('"all-minilm.gguf"', repr(minilm))
        done = subprocess.run(
            [sys.executable, "-c", start + text], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert done.returncode == 0, f"{page.name}: {block}\n{done.stderr}"


def test_importing_is_light():
    heavy = ("numpy", "pydantic", "ray", "IPython")
    program = f"import sys, tern_llm; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
