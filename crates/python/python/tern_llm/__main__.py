"""The command: ``python -m tern_llm`` is ``tern``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command with the arguments of the process and exits with its code."""
    if sys.argv[1:2] == ["serve-ray"]:
        from .ray.command import main as serve_ray

        sys.exit(serve_ray(sys.argv[2:]))
    from ._native import command

    # Python's handlers would only note the signals: it executes them between two lines of Python
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(command(["tern", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
