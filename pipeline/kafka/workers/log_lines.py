"""Log lines of a worker: one per window, and messages for operators."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from dpstream.pipeline.errors import one_line
from dpstream.pipeline.stages.environment import FinishedWindow
from dpstream.topics.manifests import WindowStatus


class Level(StrEnum):
    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True, slots=True)
class LogLines:
    """Write log lines about one worker, to standard error unless `stream` is set.

    In JSON, every line has "ts" (UTC, ISO 8601), "level", "job" (or null), "stage" and "worker".
    Lines about windows also have "epoch", "window_status", "contributors" (null if unknown to the
    stage) and "seconds"; all others have "message". `on_error` is called with error messages.
    """

    job: str | None
    stage: str
    worker: str
    as_json: bool = False
    stream: TextIO | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    on_error: Callable[[str], None] = lambda message: None

    @property
    def output(self) -> TextIO:
        return self.stream or sys.stderr

    def info(self, message: str) -> None:
        self._write(Level.info, message, message=message)

    def warning(self, message: str) -> None:
        self._write(Level.warning, message, message=message)

    def error(self, message: str) -> None:
        self.on_error(message)
        self._write(Level.error, message, message=message)

    def window(self, window: FinishedWindow) -> None:
        seconds = round(window.seconds(self.clock(), int(self.wall_clock() * 1000)), 3)
        people = window.contributors
        contributed = (
            "" if people is None else f", {people:,} contributor{'' if people == 1 else 's'}"
        )
        self._write(
            Level.warning if window.window_status is WindowStatus.SUPPRESSED else Level.info,
            f"epoch {window.epoch}: {window.window_status}{contributed}, {seconds:g} s",
            epoch=window.epoch,
            window_status=window.window_status.value,
            contributors=people,
            seconds=seconds,
        )

    def _write(self, level: Level, text: str, **fields: object) -> None:
        now = self.wall_clock()
        if self.as_json:
            moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
            line = json.dumps(
                {
                    "ts": moment.replace("+00:00", "Z"),
                    "level": level,
                    "job": self.job,
                    "stage": self.stage,
                    "worker": self.worker,
                    **fields,
                },
                allow_nan=False,
            )
        else:
            moment = time.strftime("%H:%M:%S", time.localtime(now))
            who = " ".join(filter(None, (self.job, self.stage, self.worker)))
            line = one_line(f"{moment} {who}: {text}")
        print(line, file=self.output, flush=True)
