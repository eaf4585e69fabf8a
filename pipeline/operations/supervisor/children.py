"""The worker of a job in a supervisor: its processes, one after the other, and where it answers.

Each is given a socket to serve its metrics on, so that nobody has to be told where. When memory
runs out, Linux ends a worker before it ends the supervisor, and none but the worker.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpstream.pipeline.operations.processes import Running, Starter, dpstream_command

METRICS_VARIABLE = "DPSTREAM_METRICS_DESCRIPTOR"
"""The variable of the environment that names the descriptor of a worker's socket for metrics."""

HUNG_SECONDS = 90.0
"""Seconds without a pulse: a worker whose event loop is blocked ends itself after 30."""

_OOM_SCORE_ADDED, _OOM_SCORE_MAX = 200, 1000


@dataclass(eq=False, slots=True)
class Worker:
    """The worker of a job.

    Attributes:
        job: its name.
        listening: serves its metrics, through all its processes; None: they are served nowhere.
        process: the present one; None: there is none.
        started_at: when it was last started, or to be, on the monotonic clock.
        restarts: how often it ended unasked.
        awake: whether it was woken, or had no reason to rest, since it last did.
        warned_at: when it was last said that it cannot be started.
    """

    job: str
    listening: socket.socket | None = None
    process: Running | None = None
    started_at: float = 0.0
    restarts: int = 0
    awake: bool = False
    warned_at: float = float("-inf")
    _felt: tuple[object, float] = field(default=(None, 0.0), init=False)

    def start(
        self, command: Sequence[str], on_line: Callable[[str], None], start: Starter
    ) -> Running:
        """Start a process of it, when there is none.

        Raises:
            OSError: the system has no room for it.
        """
        descriptors = {}
        if self.listening is not None:
            descriptors[METRICS_VARIABLE] = self.listening.fileno()
        self.process = start(
            self.job, dpstream_command(*command), on_line=on_line, descriptors=descriptors
        )
        _offer_to_the_oom_killer(self.process.pid)
        return self.process

    @property
    def port(self) -> int | None:
        """Where it serves its metrics, on 127.0.0.1, if it runs."""
        if self.listening is None or self.process is None:
            return None
        return int(self.listening.getsockname()[1])

    def ended(self) -> tuple[int, str] | None:
        """Its return code and why, once, when its process has ended; empty if it had no time."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        reason = self.process.reason()
        self.process.let_go()
        self.process = None
        return code, reason

    def silent(self, pulse: object, now: float) -> float:
        """For how many seconds the pulse of its process has been the same.

        What changes is compared, and no clock that anybody sets: it counts only how often a pulse
        was felt to be the same, by seconds that never go back and stand still while the machine
        sleeps.

        >>> worker = Worker("a")
        >>> [worker.silent(beat, now) for beat, now in ((1, 0.0), (1, 40.0), (2, 80.0), (2, 90.0))]
        [0.0, 40.0, 0.0, 10.0]
        """
        felt = self.started_at, pulse
        if self._felt[0] != felt:
            self._felt = felt, now
        return now - self._felt[1]

    def close(self) -> None:
        """There will be no process of it for now."""
        if self.listening is not None:
            self.listening.close()


def _offer_to_the_oom_killer(pid: int) -> None:
    # Where there is no such file, or it may not be written, there is nothing to be done.
    with suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = min(own + _OOM_SCORE_ADDED, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))
