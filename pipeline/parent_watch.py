"""Child processes that exit with their parent and report why.

The parent keeps one of two connected sockets and passes the other to the child. When the parent
ends for any reason, the operating system closes its socket, and the child notices at once. In the
other direction, the child sends its exit reason, so that its output need not be parsed.
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

VARIABLE = "DPSTREAM_PARENT_WATCH"
"""Environment variable with the number of the socket descriptor for the child process."""

# A socket buffers a reason of this length without waiting for its reader.
_REASON_CHARACTERS = 4096


def follow(timeout: float = 4.0) -> None:
    """End this process when its parent ends, if the parent passed a socket to it.

    Sends SIGTERM to itself, and exits without cleanup if it still runs after `timeout` seconds.
    """
    parent_watch = _handed_down()
    if parent_watch is None:
        return

    def watch() -> None:
        with suppress(OSError):
            while parent_watch.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(timeout)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def send_reason(reason: str) -> None:
    parent_watch = _handed_down()
    if parent_watch is not None:
        with suppress(OSError):
            parent_watch.sendall(json.dumps(reason[:_REASON_CHARACTERS]).encode() + b"\n")


def received_reason(parent_watch: socket.socket) -> str:
    """Return the last reason that the child process sent; empty if it sent no reason."""
    parent_watch.setblocking(False)
    received = b""
    with suppress(OSError):
        while more := parent_watch.recv(1 << 16):
            received += more
    # A process killed while sending leaves its last line incomplete.
    *lines, _ = received.split(b"\n")
    return str(json.loads(lines[-1])) if lines else ""


def fork_for_another(answer: int) -> bool:
    """Fork a process for a subreaper to adopt; return True in it, and write its pid to `answer`."""
    parent = -1
    # After a failure, the reader of `answer` gets no pid.
    with suppress(OSError):
        parent = os.fork()
        if parent == 0:
            number = os.fork()
            if number == 0:
                os.close(answer)
                return True
            os.write(answer, str(number).encode())
    if parent == 0:
        os._exit(0)
    if parent > 0:
        # Waiting fails if SIGCHLD is ignored.
        with suppress(ChildProcessError):
            os.waitpid(parent, 0)
    os.close(answer)
    return False


@cache
def _handed_down() -> socket.socket | None:
    # Removed, so that children of this process do not inherit the variable.
    descriptor = os.environ.pop(VARIABLE, None)
    return None if descriptor is None else socket.socket(fileno=int(descriptor))
