"""Journal of an experiment's finished trials, each of which is on disk before the next starts.

Each line is JSON: a key that identifies the trial, and its result. A process that is killed while
writing leaves at most a partial line, which is truncated when the journal is opened.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from dpstream.pipeline.whole_files import naming
from experiments.evaluation.trial import Trial


class Journal:
    """The journal at a path, created if missing. At most one process may have it open."""

    def __init__(self, path: Path) -> None:
        self._finished: dict[str, Trial] = {}
        self._file = path.open("a+b")
        self._file.seek(0)
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                body = json.loads(line)
                self._finished[body["key"]] = Trial.from_json(body["trial"])
            except (ValueError, KeyError, TypeError, AttributeError):
                # Written by another version: the trial is run again.
                continue
        self._file.truncate(end)
        self._end = end

    def get(self, key: str) -> Trial | None:
        return self._finished.get(key)

    def append(self, key: str, trial: Trial) -> None:
        """Store a trial durably. After an `OSError`, no part of the trial is stored."""
        line = json.dumps({"key": key, "trial": trial.to_json()}, separators=(",", ":"))
        rest = memoryview(line.encode() + b"\n")
        end = self._end + len(rest)
        descriptor = self._file.fileno()
        try:
            with naming(Path(self._file.name)):
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, self._end)
            raise
        self._end = end
        self._finished[key] = trial

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
