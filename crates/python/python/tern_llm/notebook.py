"""Progress on a terminal or in a notebook, and text that grows in a notebook."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable

#: What shows a label, how much is done, and of how much (0 if that is not known).
Show = Callable[[str, int, int], object]


def in_notebook() -> bool:
    """Whether the process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def live_html() -> Callable[[str], None] | None:
    """What replaces the HTML of the current cell; none outside of notebooks."""
    if not in_notebook():
        return None
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda text: handle.update(HTML(text))


def progress(wanted: bool | None) -> Show | None:
    """What shows progress: as wanted, by default in notebooks and on terminals."""
    if wanted is False:
        return None
    if (update := live_html()) is not None:
        return lambda label, done, total: update(bar_html(label, done, total))
    if wanted or sys.stderr.isatty():
        return _line
    return None


def bar_html(label: str, done: int, total: int) -> str:
    """A bar, which is empty if there is nothing to show."""
    if not label:
        return ""
    value = f' value="{done}" max="{total}"' if total else ""
    return f"<div><progress{value}></progress> {html.escape(label)} {amount(done, total)}</div>"


def amount(done: int, total: int) -> str:
    """How much is done."""
    if total == 0:
        return ""
    if total >= 1 << 20:
        return f"{done / (1 << 20):,.0f} of {total / (1 << 20):,.0f} MiB"
    return f"{done:,} of {total:,}"


def _line(label: str, done: int, total: int) -> None:
    text = f"{label} {amount(done, total)}" if label else ""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
