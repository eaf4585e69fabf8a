"""Log lines of a supervisor and its workers."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import TextIO

from dpstream.pipeline.errors import one_line
from dpstream.pipeline.kafka.workers.log_lines import LogLines

_TEXT = re.compile(r"\d\d:\d\d:\d\d [^:]*: .*")


@dataclass(frozen=True, slots=True)
class Lines:
    stage: str
    worker: str
    as_json: bool = False
    stream: TextIO | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self, job: str | None, message: str) -> None:
        with self.lock:
            self._about(job).info(message)

    def warning(self, job: str | None, message: str) -> None:
        """Log a problem that resolves itself or needs an operator."""
        with self.lock:
            self._about(job).warning(message)

    def relay(self, job: str, line: str) -> None:
        """Pass on a worker's log line; turn any other output into an error line."""
        if line.startswith("{") if self.as_json else _TEXT.fullmatch(line):
            with self.lock:
                print(one_line(line), file=self._about(job).output, flush=True)
        elif line:
            with self.lock:
                self._about(job).error(line.removeprefix("error: "))

    def _about(self, job: str | None) -> LogLines:
        return LogLines(job, self.stage, self.worker, self.as_json, self.stream)
