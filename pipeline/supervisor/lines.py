"""What a supervisor writes: lines of its own, and those of its workers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from pipeline.workers.log_lines import LogLines

_TEXT = re.compile(r"\d\d:\d\d:\d\d [^:]*: (?P<message>.*)")
_ERROR = "error: "


@dataclass(frozen=True, slots=True)
class Lines:
    """Writes lines of one supervisor, on standard error unless `stream` is another."""

    stage: str
    worker: str
    as_json: bool = False
    stream: TextIO | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self, job: str | None, message: str) -> None:
        """What happens in the normal course."""
        with self.lock:
            self._about(job).info(message)

    def warning(self, job: str | None, message: str) -> None:
        """What passes by itself, or with an operator's help."""
        with self.lock:
            self._about(job).warning(message)

    def relay(self, job: str, line: str) -> None:
        """Pass on a line of a worker; one that it did not write as a log line becomes one."""
        if line.startswith("{") if self.as_json else _TEXT.fullmatch(line):
            with self.lock:
                print(line, file=self._about(job).output, flush=True)
        elif line:
            with self.lock:
                self._about(job).error(line.removeprefix(_ERROR))

    def _about(self, job: str | None) -> LogLines:
        return LogLines(job, self.stage, self.worker, self.as_json, self.stream)


def reason_of(lines: Sequence[str]) -> str:
    """Why a worker has ended, from its last lines.

    >>> reason_of(["12:00:00 students shuffle w1: partitions: 0", "error: there is no noise key"])
    'there is no noise key'
    >>> reason_of(["12:00:00 students shuffle w1: topic students.reports is gone"])
    'topic students.reports is gone'
    """
    for line in reversed(lines):
        if line.startswith(_ERROR):
            return line.removeprefix(_ERROR)
    return _message(lines[-1]) if lines else ""


def _message(line: str) -> str:
    if found := _TEXT.fullmatch(line):
        return found["message"]
    try:
        return str(json.loads(line)["message"])
    except (ValueError, TypeError, KeyError):
        return line
