"""Starting many processes of ours for the imports of one.

What a process of ours imports takes it seconds, and most of it is the same for all. `Forks` has one
of them, the *forker* (`operations.forker`), import it once. What it starts from then on is forked
from that and adopted by this process, and is otherwise as a `Process`: the leader of a session of
its own, on a lifeline, with a log and an exit code. Only the command line that the system shows of
it is the forker's; its name there is its own.
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
    OnLifeline,
    Process,
    Running,
    end_all,
    module_and_arguments,
    python_module,
    start_process,
)
from dpstream.pipeline.state import private_folder

POSSIBLE = sys.platform == "linux"
"""Whether it is safe here to fork what has imported much, and orphans can be adopted."""

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.01


class Forks:
    """Starts processes that find imported what they need.

    Whatever cannot be forked is started as a `Process`; everything, where forking is not safe or
    the forker has ended.

    Args:
        modules: what the forker imports.
        log: what it has to say.
    """

    def __init__(self, modules: Sequence[str], log: Path) -> None:
        self._forker: Process | None = None
        self._channel, handed_down = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        private_folder(log.parent)
        log.write_bytes(b"")
        with handed_down:
            # Orphans are then children of this process, which learns how they end.
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
        """End the forker."""
        self._channel.close()
        if self._forker is not None:
            end_all([self._forker], patience=0.0)

    def wait(self) -> None:
        """Wait until all is imported, or the forker has ended; any thread may, and more than one.

        Whoever starts a process before waits as well.
        """
        # Left where it is, for others that wait. All of them are to hear of it: of those who wait
        # to receive, Linux would wake one.
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
        """Start one of our modules: see `Starter`.

        Raises:
            OSError: the system has no room for it.
        """
        if log is None or on_line is None:
            with suppress(OSError), ExitStack() as opened:
                if on_line is None:
                    output = opened.enter_context((log or Path(os.devnull)).open("ab"))
                    return self._fork(name, command, output.fileno(), descriptors or {})
                heard, said = os.pipe()
                printed = opened.enter_context(os.fdopen(heard, errors="replace"))
                with os.fdopen(said, "wb"):
                    forked = self._fork(name, command, said, descriptors or {})
                opened.pop_all()
                forked.relay(printed, on_line)
                return forked
        return start_process(name, command, log=log, on_line=on_line, descriptors=descriptors)

    def _fork(
        self, name: str, command: Sequence[str], output: int, descriptors: Mapping[str, int]
    ) -> _ForkedProcess:
        module, *arguments = module_and_arguments(command)
        request = Request(name, module, arguments, tuple(descriptors))
        lifeline_end, held = socket.socketpair()
        heard, answer = os.pipe()
        with held, os.fdopen(heard) as answers:
            with os.fdopen(answer, "w"):
                handed_down = [answer, held.fileno(), output, *descriptors.values()]
                request.send(self._channel, handed_down)
            # To its end: only then is it adopted.
            number = answers.read()
        if not number:
            lifeline_end.close()
            raise OSError("the forker has not forked")
        return _ForkedProcess(lifeline_end, int(number))


class _ForkedProcess(OnLifeline):
    """A process that the forker has forked, and a child of this one."""

    def __init__(self, lifeline_end: socket.socket, pid: int) -> None:
        super().__init__(lifeline_end)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # SIGCHLD is ignored: as `subprocess` has it, nobody knows how it ended.
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
