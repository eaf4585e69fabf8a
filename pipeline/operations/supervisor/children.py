"""The worker processes of a supervisor, one for each job.

Each is given a socket to serve its metrics on, so that nobody has to be told where. When memory
runs out, Linux ends a worker before it ends the supervisor, and none but the worker.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from dpstream.pipeline.operations.processes import (
    Running,
    Starter,
    dpstream_command,
    end_all,
    start_process,
)

METRICS_VARIABLE = "DPSTREAM_METRICS_DESCRIPTOR"
"""The variable of the environment that names the descriptor of a worker's socket for metrics."""

_OOM_SCORE_ADDED, _OOM_SCORE_MAX = 200, 1000


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended: its return code, and why; empty if it had no time to say so."""

    job: str
    code: int
    reason: str


class Children:
    """Starts workers and ends them; none is left when it is closed, or killed.

    Args:
        command: the dpstream command of a job's worker.
        on_line: is given what workers print, job and line, in other threads.
        monitored: whether workers serve metrics, each on a socket that `METRICS_VARIABLE` names.
        start: starts them.
    """

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        on_line: Callable[[str, str], None],
        *,
        monitored: bool,
        start: Starter = start_process,
    ) -> None:
        self._start = start
        self._command = command
        self._on_line = on_line
        self._monitored = monitored
        self._processes: dict[str, Running] = {}
        self._sockets: dict[str, socket.socket] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        end_all(self._processes.values(), patience=0.0)
        for listening in self._sockets.values():
            listening.close()

    def start(self, job: str) -> int:
        """Start the worker of a job that has none; returns its process id.

        Raises:
            OSError: the system has no room for it.
        """
        listening = self._socket_of(job) if self._monitored else None
        process = self._start(
            job,
            dpstream_command(*self._command(job)),
            on_line=partial(self._on_line, job),
            descriptors={} if listening is None else {METRICS_VARIABLE: listening.fileno()},
        )
        _offer_to_the_oom_killer(process.pid)
        self._processes[job] = process
        return process.pid

    def terminate(self, job: str) -> None:
        """Ask the worker of a job to end."""
        self._processes[job].terminate()

    def kill(self, job: str) -> None:
        """End the worker of a job by force."""
        self._processes[job].kill()

    def port(self, job: str) -> int | None:
        """Where the worker of a job serves its metrics, on 127.0.0.1, if it runs."""
        listening = self._sockets.get(job)
        if listening is None or job not in self._processes:
            return None
        return int(listening.getsockname()[1])

    def ended(self) -> list[Ended]:
        """The workers that have ended since this was last asked."""
        ended = []
        for job, process in list(self._processes.items()):
            if (code := process.poll()) is not None:
                ended.append(Ended(job, code, process.reason()))
                process.let_go()
                del self._processes[job]
        return ended

    @property
    def running(self) -> tuple[str, ...]:
        """Jobs whose worker was started and has not ended, as far as `ended` has said."""
        return tuple(self._processes)

    def forget(self, job: str) -> None:
        """There will be no worker of a job for now."""
        if listening := self._sockets.pop(job, None):
            listening.close()

    def _socket_of(self, job: str) -> socket.socket:
        if job not in self._sockets:
            self._sockets[job] = socket.create_server(("127.0.0.1", 0))
        return self._sockets[job]


def _offer_to_the_oom_killer(pid: int) -> None:
    # Where there is no such file, or it may not be written, there is nothing to be done.
    with suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = min(own + _OOM_SCORE_ADDED, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))
