"""Notebooks: HTML of answers, which is never the model's markup, and progress."""

from __future__ import annotations

import sys
import types

import pytest
from tern_llm import notebook
from tern_llm.answer import as_html


class ZMQInteractiveShell:
    """What the shell of a kernel is called."""


class Handle:
    """A cell whose output is replaced."""

    def __init__(self):
        self.shown = []

    def update(self, html):
        self.shown.append(html.data)


@pytest.fixture
def cell(monkeypatch):
    """The output of the cell of a kernel."""
    handle = Handle()
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell
    display.HTML = lambda data: types.SimpleNamespace(data=data)
    display.display = lambda _, display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return handle


def test_answers_are_html_and_not_markup(stories):
    assert "&lt;script&gt;" in as_html("<script>", "") and "<details" in as_html("", "<b>")
    assert "<b>" not in as_html("", "<b>")
    assert "white-space: pre-wrap" in stories.generate("Once", max_tokens=4)._repr_html_()


def test_a_stream_grows_in_its_cell(stories, cell):
    answer = stories.stream("Once upon a time", max_tokens=20, temperature=0).show()
    assert cell.shown[-1] == answer._repr_html_() and answer.text in cell.shown[-1]


def test_a_stream_is_printed_elsewhere(stories, capsys):
    answer = stories.stream("Once upon a time", max_tokens=8, temperature=0).show()
    assert capsys.readouterr().out == answer.text + "\n"


def test_progress_is_shown_and_removed(stories, cell):
    stories.generate(["Once"] * 5, max_tokens=2, progress=None)
    assert len(cell.shown) == 6 and 'value="5" max="5"' in cell.shown[4] and cell.shown[-1] == ""
    assert "<" not in notebook.bar_html("<b>", 1, 2).replace("<div>", "").replace("</div>", "").replace(
        '<progress value="1" max="2"></progress>', ""
    )


def test_progress_on_a_terminal(stories, capsys, monkeypatch):
    stories.generate(["Once"] * 3, max_tokens=2, progress=True)
    shown = capsys.readouterr().err
    assert "completions 3 of 3" in shown and shown.endswith("\r\x1b[K")
    stories.generate(["Once"] * 3, max_tokens=2)
    assert capsys.readouterr().err == ""
