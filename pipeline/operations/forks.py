"""Start many processes that share the imports of one process.

Each process of this package spends seconds on imports. `Forks` imports the modules once, in a
process called the *forker*; later processes are forked from it and adopted by this process. Like a
`Process`, a forked process leads its own session and has a parent-death watch, a log and an exit
code. It has its own name, but the command line of the forker.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from dpstream.pipeline.operations.forker import CHANNEL_VARIABLE, Request
from dpstream.pipeline.operations.processes import (
    Process,
    Running,
    WatchingParent,
    end_all,
    module_and_arguments,
    python_module,
    start_process,
)
from dpstream.pipeline.state import private_folder

POSSIBLE = sys.platform == "linux"
"""True if forking after many imports is safe, and orphans can be adopted, on this system."""

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.01


class Forks:
    """Start processes that have already imported `modules`, by forking where that is safe."""

    def __init__(self, modules: Sequence[str], log: Path) -> None:
        self._forker: Process | None = None
        self._channel, handed_down = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        private_folder(log.parent)
        log.write_bytes(b"")
        with handed_down:
            # Orphans become children of this process, which receives their exit status.
            if not POSSIBLE or ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
                return
            command = python_module("dpstream.pipeline.operations.forker", *modules)
            descriptors = {CHANNEL_VARIABLE: handed_down.fileno()}
            self._forker = Process(command, log=log, descriptors=descriptors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()
        if self._forker is not None:
            end_all([self._forker], timeout=0.0)

    def wait(self) -> None:
        """Wait until the imports are complete or the forker has exited; `start` waits, too."""
        # Leave the message unread, so that all waiting threads see it: Linux would wake only one of
        # several receiving threads.
        with suppress(OSError, ValueError):
            select.select([self._channel], [], [])

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        descriptors: Mapping[str, int] | None = None,
    ) -> Running:
        if log is None or on_line is None:
            with suppress(OSError), ExitStack() as opened:
                if on_line is None:
                    output = opened.enter_context((log or Path(os.devnull)).open("ab"))
                    return self._fork(name, command, output.fileno(), descriptors or {})
                reading, writing = os.pipe()
                printed = opened.enter_context(os.fdopen(reading, errors="replace"))
                with os.fdopen(writing, "wb"):
                    forked = self._fork(name, command, writing, descriptors or {})
                opened.pop_all()
                forked.relay(printed, on_line)
                return forked
        return start_process(name, command, log=log, on_line=on_line, descriptors=descriptors)

    def _fork(
        self, name: str, command: Sequence[str], output: int, descriptors: Mapping[str, int]
    ) -> _ForkedProcess:
        module, *arguments = module_and_arguments(command)
        request = Request(name, module, arguments, tuple(descriptors))
        parent_end, held = socket.socketpair()
        reading, answer = os.pipe()
        with held, os.fdopen(reading) as answers:
            with os.fdopen(answer, "w"):
                handed_down = [answer, held.fileno(), output, *descriptors.values()]
                request.send(self._channel, handed_down)
            # Read to the end of the pipe, which shows that the process is adopted.
            number = answers.read()
        if not number:
            parent_end.close()
            raise OSError("the forker did not fork a process")
        return _ForkedProcess(parent_end, int(number))


class _ForkedProcess(WatchingParent):
    def __init__(self, parent_end: socket.socket, pid: int) -> None:
        super().__init__(parent_end)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # SIGCHLD is ignored: as in `subprocess`, the exit status is unknown.
                ended, status = self.pid, 0
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
