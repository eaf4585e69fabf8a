"""Processes that end with the one that started them, and tell it why they end.

The starter keeps one of two connected sockets and hands the other one down. However it ends, the
system closes its own, and the process learns of it at once. Why the process itself ends goes the
other way, as data: nobody has to look for it in what the process prints.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import cache

VARIABLE = "DPSTREAM_LIFELINE"
"""The variable of the environment that names a process's descriptor."""

# A socket takes so much without waiting for its reader.
_CHARACTERS_TOLD = 4096


def follow(patience: float = 4.0) -> None:
    """End this process with the one that started it, if that has handed down a lifeline.

    It is sent SIGTERM, and leaves at once if it is still there after `patience` seconds.
    """
    lifeline = _handed_down()
    if lifeline is None:
        return

    def watch() -> None:
        with suppress(OSError):
            while lifeline.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def tell(reason: str) -> None:
    """Tell whoever holds this process on a lifeline why it is about to end."""
    lifeline = _handed_down()
    if lifeline is not None:
        with suppress(OSError):
            lifeline.sendall(json.dumps(reason[:_CHARACTERS_TOLD]).encode() + b"\n")


def told(lifeline: socket.socket) -> str:
    """What the process at the other end has told last; empty if it has told nothing."""
    lifeline.setblocking(False)
    received = b""
    with suppress(OSError):
        while more := lifeline.recv(1 << 16):
            received += more
    # Whoever was killed while it told has not ended its last line.
    *lines, _ = received.split(b"\n")
    return str(json.loads(lines[-1])) if lines else ""


@cache
def _handed_down() -> socket.socket | None:
    # Whoever this process starts has none, or one of its own.
    descriptor = os.environ.pop(VARIABLE, None)
    return None if descriptor is None else socket.socket(fileno=int(descriptor))
