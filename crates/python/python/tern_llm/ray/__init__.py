"""Tern on Ray: replicas behind one address (``serve``), and batches of rows (``Batch``).

``tern_llm.ray.serve`` needs ``ray[serve]``, ``tern_llm.ray.Batch`` needs ``ray[data]``; nothing is imported
before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import serve
    from .data import Batch

__all__ = ["Batch", "serve"]


def __getattr__(name: str) -> Any:
    if name == "Batch":
        from .data import Batch

        return Batch
    if name == "serve":
        from importlib import import_module

        return import_module(".serve", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
