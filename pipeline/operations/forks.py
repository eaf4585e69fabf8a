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
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from dpstream.pipeline.operations import lifeline
from dpstream.pipeline.operations.forker import Request
from dpstream.pipeline.operations.processes import (
    Process,
    Running,
    end_all,
    module_and_arguments,
    python_module,
)
from dpstream.pipeline.operations.restarted_processes import Child, start_process
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
            number = handed_down.fileno()
            command = python_module("dpstream.pipeline.operations.forker", str(number), *modules)
            self._forker = Process(command, log=log, descriptors=(number,))

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

    def start(self, child: Child) -> Running:
        """Start what a child is to run: one of our modules.

        Raises:
            OSError: the system has no room for it.
        """
        if child.on_line is None:
            with suppress(OSError), child.log.open("ab") as log:
                return self.fork(child.name, child.command, log.fileno())
        return start_process(child)

    def fork(
        self,
        name: str,
        command: Sequence[str],
        log: int,
        descriptors: Mapping[str, int] | None = None,
    ) -> _Forked:
        """Fork a process.

        Args:
            name: that the system shows.
            command: of one of our modules.
            log: a descriptor that takes what it prints.
            descriptors: that are handed down, by the variable of the environment that names each.

        Raises:
            OSError: it cannot be forked; perhaps it can be started.
        """
        more = descriptors or {}
        module, *arguments = module_and_arguments(command)
        request = Request(name, module, arguments, tuple(more))
        with ExitStack() as ours:
            lifeline_end, held = socket.socketpair()
            ours.enter_context(lifeline_end)
            answers, for_answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(answers)
            with held, for_answers:
                request.send(self._channel, for_answers, held, log, tuple(more.values()))
            forked = _Forked(lifeline_end, answers)
            ours.pop_all()
            return forked


class _Forked:
    """A process that the forker has forked. The sockets are its own until it has ended."""

    def __init__(self, lifeline_end: socket.socket, answers: socket.socket) -> None:
        answers.settimeout(_ANSWER_SECONDS)
        number, descriptors, _, _ = socket.recv_fds(answers, _ANSWER_BYTES, 1)
        if not number:
            raise OSError("the forker has not forked")
        answers.setblocking(False)
        self.pid = int(number)
        self.returncode: int | None = None
        self._descriptor = descriptors[0]
        self._lifeline = lifeline_end
        self._answers = answers
        self.relay: threading.Thread | None = None

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

    def reason(self, seconds: float = 1.0) -> str:
        if self.relay is not None:
            self.relay.join(seconds)
        return lifeline.told(self._lifeline)

    def let_go(self) -> None:
        self._lifeline.close()

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
