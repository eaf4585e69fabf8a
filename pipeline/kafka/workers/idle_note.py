"""Decide when a worker exits for lack of work, and store the note that it leaves.

A worker that has had no work for some time reports in ``<job>.status`` that it is idle, leaves a
note in its folder, and exits. The note states what wakes it: see
`dpstream.pipeline.stages.idle_condition`. The supervisor reads the note, repeats the idle heartbeat
regularly, and restarts the worker on demand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from dpstream.pipeline.stages.idle_condition import IdleCondition
from dpstream.pipeline.whole_files import naming, read_whole_file
from dpstream.topics.names import Role

NOTE = "idle.json"
FOUND_NOTHING = 3.0
"""Maximum idle seconds for a worker that has neither read nor written anything since its start."""


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """Seconds without work after which a worker exits, and the topics that wake it."""

    after: float
    roles: tuple[Role, ...]
    version: str


class Quiet:
    """Timer for the duration without work.

    >>> quiet = Quiet(IdleSettings(60.0, (), ""))
    >>> [quiet.lasts(now, done=9, idle=now != 50) for now in (0.0, 50.0, 51.0, 110.0, 111.0)]
    [False, False, False, False, True]

    A worker that finds no work after it was woken waits for a shorter time:

    >>> quiet = Quiet(IdleSettings(60.0, (), ""))
    >>> [quiet.lasts(now, done=0, idle=True) for now in (0.0, 2.0, 3.0)]
    [False, False, True]
    """

    def __init__(self, idle_settings: IdleSettings) -> None:
        self._after = idle_settings.after
        self._done = 0
        self._since: float | None = None

    def lasts(self, now: float, done: int, *, idle: bool) -> bool:
        """Return whether there has been no work for long enough; `now` in seconds.

        `done` counts the records read and written since the start, even while restoring, because
        the worker might then read the record that woke it. `idle` is True if there is no work now.
        """
        if not idle or done != self._done:
            self._since = None
        self._done = done
        if idle and self._since is None:
            self._since = now
        after = self._after if done else min(self._after, FOUND_NOTHING)
        return self._since is not None and now - self._since >= after

    def restart(self) -> None:
        self._since = None


def idle_heartbeat(**more: object) -> dict[str, object]:
    return {"idle": True, "partitions": [], "busy": False, **more}


@dataclass(frozen=True, slots=True)
class IdleNote:
    """Note left by an idle worker, which stays idle while `condition` holds.

    `words` is the worker's heartbeat in ``<job>.status``, and `metrics` contains its last
    Prometheus metrics, if any. `since` is in seconds since 1970 by this machine's clock.
    """

    condition: IdleCondition
    version: str
    words: Mapping[str, object]
    metrics: str = ""
    since: float = 0.0

    def write(self, folder: Path, metrics: str) -> None:
        path = folder / NOTE
        fresh = path.with_suffix(".new")
        with naming(path):
            body = asdict(replace(self, metrics=metrics, since=time.time()))
            fresh.write_text(json.dumps(body), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def read(cls, folder: Path) -> IdleNote | None:
        try:
            return _notes().validate_json(read_whole_file(folder / NOTE))
        except (OSError, ValueError):
            return None

    @staticmethod
    def delete(folder: Path) -> None:
        (folder / NOTE).unlink(missing_ok=True)


@cache
def _notes() -> TypeAdapter[IdleNote]:
    return TypeAdapter(IdleNote)
