"""Processes that end with the one that started them, even when that one is killed.

The starter keeps the writing end of a pipe and hands down the reading end. However it ends, the
system closes its end, and whoever reads learns of it at once.

``python -m pipeline.lifeline DESCRIPTOR COMMAND...`` is ``dpstream COMMAND...`` on a lifeline.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def follow(descriptor: int, patience: float = 4.0) -> None:
    """End this process when the pipe of `descriptor` has lost its last writer.

    It is sent SIGTERM, and leaves at once if it is still there after `patience` seconds.
    """

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main() -> int:
    """Run a dpstream command on a lifeline."""
    follow(int(sys.argv[1]))
    sys.argv[:2] = ["dpstream"]
    from pipeline.cli import main as dpstream

    return dpstream()


if __name__ == "__main__":
    sys.exit(main())
