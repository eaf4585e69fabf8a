"""Start processes that log to files, restart them when they fail, and end them together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.operations.processes import (
    BackOff,
    Running,
    Starter,
    end_all,
    how_it_ended,
    start_process,
)
from dpstream.pipeline.state import private_folder

BACK_OFF_FIRST = 0.5
RESTARTS = 4
"""Maximum number of restarts, with increasing waits, before giving up."""

_LOG_LINES = 8


class ProcessError(DpstreamError):
    """A process has ended and will not be restarted; the message contains the end of its log."""


@dataclass(eq=False, slots=True)
class Child:
    """A process, together with all its restarts; times are in monotonic seconds.

    If it is `endless`, exit code 0 is also a failure. `on_line` is called with each line of the
    process's standard output, in another thread.
    """

    name: str
    command: Sequence[str]
    log: Path
    endless: bool
    on_line: Callable[[str], None] | None
    back_off: BackOff
    process: Running = field(init=False)
    started_at: float = field(default=0.0, init=False)
    restart_at: float | None = None

    @property
    def state(self) -> str:
        if self.restart_at is not None:
            return "restarting"
        return "running" if self.process.poll() is None else "finished"

    def log_end(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return "".join(f"\n  {line.rstrip()}" for line in deque(lines, maxlen=_LOG_LINES))


class RestartedProcesses:
    """Start processes, restart them when they fail, and end them on close.

    `notify` is called with a message when a failed process will be restarted. On close, processes
    are killed after `timeout` seconds, or immediately when `hurry` returns True.
    """

    def __init__(
        self,
        notify: Callable[[str], None],
        *,
        timeout: float = 5.0,
        hurry: Callable[[], bool] = lambda: False,
        start: Starter = start_process,
    ) -> None:
        self.children: list[Child] = []
        self._notify = notify
        self._timeout = timeout
        self._hurry = hurry
        self._start = start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        endless: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> Child:
        private_folder(log.parent)
        log.write_bytes(b"")
        back_off = BackOff(BACK_OFF_FIRST, BACK_OFF_FIRST * 2.0 ** (RESTARTS - 1))
        child = Child(name, command, log, endless, on_line, back_off)
        self._launch(child)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Restart failed processes; raise ProcessError after many failures or for wrong input."""
        for child in self.children:
            now = time.monotonic()
            if child.restart_at is None:
                self._check_child(child, now)
            elif now >= child.restart_at:
                child.restart_at = None
                self._launch(child)

    def close(self) -> None:
        end_all((child.process for child in self.children), self._timeout, self._hurry)

    def _check_child(self, child: Child, now: float) -> None:
        code = child.process.poll()
        if code is None or (code == 0 and not child.endless):
            return
        wait = child.back_off.failed(now - child.started_at)
        # With a wrong command line, job file or input, another attempt would fail in the same way.
        if code == WRONG_INPUT or child.back_off.failures > RESTARTS:
            raise ProcessError(
                f"{child.name} {how_it_ended(code)}; the end of its log "
                f"{child.log}:{child.log_end()}"
            )
        child.process.let_go()
        child.restart_at = now + wait
        self._notify(f"{child.name} {how_it_ended(code)}; restarting in {wait:g} s")

    def _launch(self, child: Child) -> None:
        child.process = self._start(child.name, child.command, log=child.log, on_line=child.on_line)
        child.started_at = time.monotonic()
