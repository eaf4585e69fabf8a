"""The worker processes of a supervisor, one for each job.

Each is the leader of a session of its own, holds on to a lifeline (`pipeline.lifeline`), and is
given a socket to serve its metrics on, so that nobody has to be told where. When memory runs out,
Linux ends a worker before it ends the supervisor, and none but the worker.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.subprocesses import python_environment, python_module

_LAST_LINES = 3
_LAST_WORDS_SECONDS = 1.0
_OOM_SCORE_ADDED, _OOM_SCORE_MAX = 200, 1000


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended: its return code, and the last lines that it wrote."""

    job: str
    code: int
    last_lines: Sequence[str]


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[str]
    relay: threading.Thread
    last_lines: deque[str]


class Children:
    """Starts workers and ends them; none is left when it is closed, or killed.

    Args:
        command: the dpstream command of a job's worker, given the descriptor of the socket that it
            is to serve its metrics on; None where it is to serve none.
        on_line: is given what workers print, job and line, in other threads.
        monitored: whether workers serve metrics.
    """

    def __init__(
        self,
        command: Callable[[str, int | None], Sequence[str]],
        on_line: Callable[[str, str], None],
        *,
        monitored: bool,
    ) -> None:
        self._command = command
        self._on_line = on_line
        self._monitored = monitored
        self._children: dict[str, _Child] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._lifeline, self._writing_end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children.values():
            child.process.kill()
            child.process.wait()
        for listening in self._sockets.values():
            listening.close()
        os.close(self._lifeline)
        os.close(self._writing_end)

    def start(self, job: str) -> int:
        """Start the worker of a job that has none; returns its process id.

        Raises:
            OSError: the system has no room for it.
        """
        listening = self._socket_of(job) if self._monitored else None
        descriptor = None if listening is None else listening.fileno()
        descriptors = [self._lifeline] if descriptor is None else [self._lifeline, descriptor]
        command = self._command(job, descriptor)
        process = subprocess.Popen(
            python_module("pipeline.lifeline", str(self._lifeline), *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=python_environment(),
            pass_fds=descriptors,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        _offer_to_the_oom_killer(process.pid)
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        relay = threading.Thread(target=self._relay, args=(job, process, last_lines), daemon=True)
        relay.start()
        self._children[job] = _Child(process, relay, last_lines)
        return process.pid

    def terminate(self, job: str) -> None:
        """Ask the worker of a job to end."""
        self._children[job].process.terminate()

    def kill(self, job: str) -> None:
        """End the worker of a job by force."""
        self._children[job].process.kill()

    def port(self, job: str) -> int | None:
        """Where the worker of a job serves its metrics, on 127.0.0.1, if it runs."""
        listening = self._sockets.get(job)
        if listening is None or job not in self._children:
            return None
        return int(listening.getsockname()[1])

    def ended(self) -> list[Ended]:
        """The workers that have ended since this was last asked."""
        gone = [job for job, child in self._children.items() if child.process.poll() is not None]
        found = []
        for job in gone:
            child = self._children.pop(job)
            # Its last words may still be on their way.
            child.relay.join(_LAST_WORDS_SECONDS)
            found.append(Ended(job, child.process.returncode, tuple(child.last_lines)))
        return found

    def forget(self, job: str) -> None:
        """There will be no worker of a job for now."""
        if listening := self._sockets.pop(job, None):
            listening.close()

    def _socket_of(self, job: str) -> socket.socket:
        if job not in self._sockets:
            self._sockets[job] = socket.create_server(("127.0.0.1", 0))
        return self._sockets[job]

    def _relay(self, job: str, process: subprocess.Popen[str], last_lines: deque[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.rstrip()
                if text:
                    last_lines.append(text)
                    self._on_line(job, text)


def _offer_to_the_oom_killer(pid: int) -> None:
    # Where there is no such file, or it may not be written, there is nothing to be done.
    with suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = min(own + _OOM_SCORE_ADDED, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))
