"""Workers that end since there is nothing to do, and the note that they leave.

A worker that has had nothing to do for some time, and sees that nothing is left for its stage to
do, says so in ``<job>.status``, leaves a note in its folder and ends. The note says what wakes it:
see `dpstream.pipeline.stages.idle_condition`. Whoever watches over it reads the note, says again
now and then that it rests, and starts it when it is woken.
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

NOTE = "rest.json"
FOUND_NOTHING = 3.0
"""Seconds after which a worker rests that was shown and wrote nothing since it was started."""


@dataclass(frozen=True, slots=True)
class Resting:
    """When a worker ends since there is nothing to do.

    Attributes:
        after: seconds since it last had anything to do.
        roles: the topics that wake it, that of its stage among them.
        version: of the job's record, for the note.
    """

    after: float
    roles: tuple[Role, ...]
    version: str


class Quiet:
    """For how long there has been nothing to do.

    >>> quiet = Quiet(Resting(60.0, (), ""))
    >>> [quiet.lasts(now, done=9, idle=now != 50) for now in (0.0, 50.0, 51.0, 110.0, 111.0)]
    [False, False, False, False, True]

    Who was woken for nothing need not wait as long:

    >>> quiet = Quiet(Resting(60.0, (), ""))
    >>> [quiet.lasts(now, done=0, idle=True) for now in (0.0, 2.0, 3.0)]
    [False, False, True]
    """

    def __init__(self, resting: Resting) -> None:
        self._after = resting.after
        self._done = 0
        self._since: float | None = None

    def lasts(self, now: float, done: int, *, idle: bool) -> bool:
        """Whether it lasts for long enough.

        Args:
            now: in seconds.
            done: records that were read since the start, and those that the stage has written:
                what a worker was woken by may be taken in before it is shown a record.
            idle: whether there is nothing to do now.
        """
        if not idle or done != self._done:
            self._since = None
        self._done = done
        if idle and self._since is None:
            self._since = now
        after = self._after if done else min(self._after, FOUND_NOTHING)
        return self._since is not None and now - self._since >= after

    def begin_anew(self) -> None:
        """There was something to do after all."""
        self._since = None


def told_at_rest(**more: object) -> dict[str, object]:
    """What a worker says in ``<job>.status`` that has ended since there is nothing to do."""
    return {"resting": True, "partitions": [], "busy": False, **more}


@dataclass(frozen=True, slots=True)
class RestNote:
    """What a worker leaves behind that rests.

    Attributes:
        rest: what wakes it.
        version: of the job's record.
        words: what it has said in ``<job>.status``.
        metrics: what it told Prometheus last; empty if it told nothing.
        since: when it was written, in seconds since 1970 by this machine's clock.
    """

    rest: IdleCondition
    version: str
    words: Mapping[str, object]
    metrics: str = ""
    since: float = 0.0

    def write(self, folder: Path, metrics: str) -> None:
        """Write it into a worker's folder, whole or not at all."""
        path = folder / NOTE
        fresh = path.with_suffix(".new")
        with naming(path):
            body = asdict(replace(self, metrics=metrics, since=time.time()))
            fresh.write_text(json.dumps(body), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def read(cls, folder: Path) -> RestNote | None:
        """What a worker has left in its folder; None: nothing that can be read."""
        try:
            return _notes().validate_json(read_whole_file(folder / NOTE))
        except (OSError, ValueError):
            return None

    @staticmethod
    def forget(folder: Path) -> None:
        """A worker works: what it has left before says nothing any more."""
        (folder / NOTE).unlink(missing_ok=True)


@cache
def _notes() -> TypeAdapter[RestNote]:
    return TypeAdapter(RestNote)
