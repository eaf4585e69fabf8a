"""Start Python processes quickly, as forks of a process that has imported the product.

`WarmPopen` is a `subprocess.Popen` of ``python -m MODULE ...`` or ``python SCRIPT ...``. It
requests a fork, which this process adopts, from a server; each process that runs tests has one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from dpstream.pipeline.parent_watch import fork_for_another

ROOT: Final = Path(__file__).parents[2]
_IMPORTED: Final = (
    "dpstream.pipeline.cli.collect",
    "dpstream.pipeline.cli.run",
    "dpstream.pipeline.devices.producer",
    "dpstream.pipeline.kafka.workers.worker",
)
_BECOME_SUBREAPER: Final = 36
_ORDER_BYTES: Final = 1 << 17
_NEEDS_EXEC: Final = ("LD_PRELOAD", "PYTHONOPTIMIZE", "PYTHONWARNINGS")
"""Environment variables that only a new interpreter reads."""


class WarmPopen(subprocess.Popen[Any]):
    """`Popen` that forks where possible, and otherwise starts a new interpreter."""

    def _execute_child(self, *arguments: Any) -> None:
        base = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(base).bind(*arguments).arguments
        command = [os.fspath(each) for each in given["args"]]
        environment = dict(os.environ if given["env"] is None else given["env"])
        if command[0] != sys.executable or any(name in environment for name in _NEEDS_EXEC):
            base(*arguments)
            return
        order = {
            "command": command[1:],
            "environment": environment,
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "session": given["start_new_session"],
        }
        pipes = given["p2cread"], given["c2pwrite"], given["errwrite"]
        streams = [own if pipe == -1 else pipe for own, pipe in enumerate(pipes)]
        self.pid = _fork(json.dumps(order).encode(), streams)
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]


def _fork(order: bytes, streams: list[int]) -> int:
    heard, answer = os.pipe()
    # Only while forking, so that orphans of other processes are not adopted.
    _prctl(1)
    try:
        with os.fdopen(heard) as answers:
            with os.fdopen(answer, "w"):
                socket.send_fds(_server(), [order], [answer, *streams])
            # At the end of the channel, the process has become a child of this one.
            return int(answers.read())
    finally:
        _prctl(0)


def _prctl(adopts: int) -> None:
    if ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, adopts, 0, 0, 0):
        raise OSError("this process cannot adopt other processes")


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())]
        server = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for every order; return the order in the fork, or None when the channel ends."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, _ORDER_BYTES, 4)
        if not text:
            return None
        answer, *streams = descriptors
        if fork_for_another(answer):
            channel.close()
            order: dict[str, Any] = json.loads(text)
            _become(order, streams)
            return order
        for stream in streams:
            os.close(stream)


def _become(order: dict[str, Any], streams: list[int]) -> None:
    if order["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in _IMPORTED:
        import_module(module)
    gc.freeze()
    order = _serve(channel)
    if order is None:
        return
    command = order["command"]
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
