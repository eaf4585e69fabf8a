"""The worker of a supervised job: its successive processes and its metrics address.

Each process inherits a socket for its metrics, so that no port has to be configured. When memory
runs out, Linux kills a single worker rather than the supervisor.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpstream.pipeline.operations.processes import Running, Starter, dpstream_command

METRICS_VARIABLE = "DPSTREAM_METRICS_DESCRIPTOR"
"""Environment variable with the file descriptor of a worker's metrics socket."""

HUNG_SECONDS = 90.0
"""Maximum seconds without a heartbeat; a worker whose event loop is blocked exits after 30 s."""

_OOM_SCORE_ADDED, _OOM_SCORE_MAX = 200, 1000


@dataclass(eq=False, slots=True)
class Worker:
    """The worker of a job.

    `listening` is the metrics socket that all its processes share. `started_at` is in monotonic
    seconds. `restarts` counts unexpected exits. `awake` is True from when the worker is woken, or
    starts with work, until it is idle again.
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
        """Start a process if the worker has none; raise OSError if the system lacks resources."""
        descriptors = {}
        if self.listening is not None:
            descriptors[METRICS_VARIABLE] = self.listening.fileno()
        self.process = start(
            self.job, dpstream_command(*command), on_line=on_line, descriptors=descriptors
        )
        _prefer_for_the_oom_killer(self.process.pid)
        return self.process

    @property
    def port(self) -> int | None:
        if self.listening is None or self.process is None:
            return None
        return int(self.listening.getsockname()[1])

    def ended(self) -> tuple[int, str] | None:
        """Return the exit code and the reason, once after each exit; otherwise None."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        reason = self.process.reason()
        self.process.let_go()
        self.process = None
        return code, reason

    def stalled(self, heartbeat: object, now: float) -> float:
        """Return the seconds for which the heartbeat of the process has not changed.

        `now` is in seconds of a monotonic clock that stops while the machine sleeps.

        >>> worker = Worker("a")
        >>> [worker.stalled(beat, now) for beat, now in ((1, 0.0), (1, 40.0), (2, 80.0), (2, 90.0))]
        [0.0, 40.0, 0.0, 10.0]
        """
        felt = self.started_at, heartbeat
        if self._felt[0] != felt:
            self._felt = felt, now
        return now - self._felt[1]

    def close(self) -> None:
        if self.listening is not None:
            self.listening.close()


def _prefer_for_the_oom_killer(pid: int) -> None:
    # Keep the default if the file does not exist or cannot be written.
    with suppress(OSError, ValueError):
        own = int(Path("/proc/self/oom_score_adj").read_text())
        score = min(own + _OOM_SCORE_ADDED, _OOM_SCORE_MAX)
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))
