"""The process of a replica's server: the command, which ends with the process that started it.

``python -m tern_llm.ray.keeper serve ...``. Its stdin is a pipe whose other end the replica holds and never
writes to: it is closed when the replica ends, however that happens.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

#: Seconds that it may take then: nobody waits for its answers.
GRACE = 10


def _follow() -> None:
    """Ends this process when stdin does: gently at first, so that the server closes its connections."""
    while os.read(0, 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def main() -> None:
    """Runs the command."""
    from .._native import command

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_follow, daemon=True).start()
    code = command(["tern", *sys.argv[1:]])
    sys.stdout.flush()
    os._exit(code)  # the other thread still waits


if __name__ == "__main__":
    main()
