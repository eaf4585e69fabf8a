"""What a supervisor writes: lines of its own, and those of its workers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from pipeline.printable import one_line
from pipeline.workers.log_lines import Level, LogLines

_TEXT = re.compile(r"\d\d:\d\d:\d\d [^:]*: (?P<message>.*)")
_ERROR = "error: "
# Lines for people do not tell how much they matter.
_IN_COURSE = re.compile(r"epoch \d+: |partitions: |stopped$")


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
                print(one_line(line), file=self._about(job).output, flush=True)
        elif line:
            with self.lock:
                self._about(job).error(line.removeprefix(_ERROR))

    def _about(self, job: str | None) -> LogLines:
        return LogLines(job, self.stage, self.worker, self.as_json, self.stream)


def reason_of(code: int, lines: Sequence[str]) -> str:
    """Why a worker has ended, from its return code and last lines; empty if they do not say it.

    Who is ended by a signal had no time to say why.

    >>> reason_of(2, ["12:00:00 jobs shuffle w1: partitions: 0", "error: there is no noise key"])
    'there is no noise key'
    >>> reason_of(1, ["12:00:00 students shuffle w1: topic students.reports is gone"])
    'topic students.reports is gone'
    >>> reason_of(-9, ["12:00:00 students shuffle w1: epoch 20: released, 0.4 s"])
    ''
    """
    if code <= 0:
        return ""
    for line in reversed(lines):
        if line.startswith(_ERROR):
            return line.removeprefix(_ERROR)
    return _complaint(lines[-1]) if lines else ""


def _complaint(line: str) -> str:
    """What a line says, unless it is known to be about the normal course."""
    if found := _TEXT.fullmatch(line):
        message = found["message"]
        return "" if _IN_COURSE.match(message) else message
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict):
        return line
    return str(fields.get("message", "")) if fields.get("level") == Level.error else ""
