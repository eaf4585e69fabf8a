"""What a worker says: one line for every window, and one for what people should know."""

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
from dpstream.topics.manifests import Fate


class Level(StrEnum):
    """How much a line matters."""

    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True, slots=True)
class LogLines:
    """Writes lines about one worker, on standard error unless `stream` is another.

    In JSON every line has ts (UTC, ISO 8601), level, job (null where it is about none), stage and
    worker; one about a window also epoch, fate, contributors (null where the stage does not learn
    them) and seconds; every other one a message. `on_error` is told of errors too.
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
        """Where lines go."""
        return self.stream or sys.stderr

    def info(self, message: str) -> None:
        """What happens in the normal course."""
        self._write(Level.info, message, message=message)

    def warning(self, message: str) -> None:
        """What passes by itself."""
        self._write(Level.warning, message, message=message)

    def error(self, message: str) -> None:
        """Why the worker ends."""
        self.on_error(message)
        self._write(Level.error, message, message=message)

    def window(self, window: FinishedWindow) -> None:
        """The stage is done with a window."""
        seconds = round(window.seconds(self.clock(), int(self.wall_clock() * 1000)), 3)
        people = window.contributors
        told = "" if people is None else f", {people:,} contributor{'' if people == 1 else 's'}"
        self._write(
            Level.warning if window.fate is Fate.TOO_SMALL else Level.info,
            f"epoch {window.epoch}: {window.fate}{told}, {seconds:g} s",
            epoch=window.epoch,
            fate=window.fate.value,
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
