"""Starting many processes of ours for the imports of one.

What a process of ours imports takes it seconds, and most of it is the same for all. `Forks` has one
of them, the *forker* (`operations.forker`), import it once. What it starts from then on is forked
from that, and is otherwise as a `Process`: the leader of a session of its own, on a lifeline, with
a log and an exit code. Only the command line that the system shows of it is the forker's; its name
there is its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
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

POSSIBLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether it is safe here to fork what has imported much, and others' children can be awaited."""

# Forking takes milliseconds, and the forker does nothing else.
_ANSWER_SECONDS = 10.0
_ANSWER_BYTES = 32


class Forks:
    """Starts processes that find imported what they need.

    If the forker ends, what it has forked is ended too. Whatever cannot be forked is started as a
    `Process`; everything, where forking is not safe.

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
            if not POSSIBLE:
                return
            command = python_module("dpstream.pipeline.operations.forker", *modules)
            descriptors = {CHANNEL_VARIABLE: handed_down.fileno()}
            self._forker = Process(command, log=log, descriptors=descriptors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the forker; what it has forked is to have ended."""
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
                    return self._fork(name, command, output.fileno(), descriptors)
                heard, said = os.pipe()
                printed = opened.enter_context(os.fdopen(heard, errors="replace"))
                with os.fdopen(said, "wb"):
                    forked = self._fork(name, command, said, descriptors)
                opened.pop_all()
                forked.relay(printed, on_line)
                return forked
        return start_process(name, command, log=log, on_line=on_line, descriptors=descriptors)

    def _fork(
        self, name: str, command: Sequence[str], output: int, descriptors: Mapping[str, int] | None
    ) -> _ForkedProcess:
        more = descriptors or {}
        module, *arguments = module_and_arguments(command)
        request = Request(name, module, arguments, tuple(more))
        with ExitStack() as ours:
            lifeline_end, held = socket.socketpair()
            ours.enter_context(lifeline_end)
            answers, for_answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(answers)
            with held, for_answers:
                request.send(self._channel, for_answers, held, output, tuple(more.values()))
            forked = _ForkedProcess(lifeline_end, answers)
            ours.pop_all()
            return forked


class _ForkedProcess(OnLifeline):
    """A process that the forker has forked. The sockets are its own until it has ended."""

    def __init__(self, lifeline_end: socket.socket, answers: socket.socket) -> None:
        super().__init__(lifeline_end)
        answers.settimeout(_ANSWER_SECONDS)
        number, descriptors, _, _ = socket.recv_fds(answers, _ANSWER_BYTES, 1)
        if not number:
            raise OSError("the forker has not forked")
        answers.setblocking(False)
        self.pid = int(number)
        self.returncode: int | None = None
        self._descriptor = descriptors[0]
        self._answers = answers

    def poll(self) -> int | None:
        if self.returncode is None:
            with suppress(BlockingIOError):
                self.returncode = int(self._answers.recv(_ANSWER_BYTES) or self._abandoned())
                self._answers.close()
                os.close(self._descriptor)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._answers], [], [], timeout)
        code = self.poll()
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _abandoned(self) -> int:
        """End a process whose end nobody else will learn of: its forker has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        select.select([self._descriptor], [], [])
        return -signal.SIGKILL
