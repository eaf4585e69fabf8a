"""Feeds a producer: from a change log, epoch by epoch, or from rows as they come.

Both go on after the last epoch that the producer has closed, so a run that was cut short is
repeated with the same arguments.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pipeline.input.item_log import ValueLog
from pipeline.input.live import Change, CloseEpoch, Event, Held, LiveSource
from pipeline.input.rows import InputError
from pipeline.producer import Producer

# Waits until a moment at most; returns the bytes that came, b"" at the end of the input, None when
# the moment came first.
ReadUntil: TypeAlias = Callable[[datetime], bytes | None]


def produce_change_log(
    producer: Producer,
    change_log: ValueLog,
    *,
    rate: float | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Close every epoch of the log that is still open; all users are present at each.

    Args:
        producer: all users of the log are enrolled with it, unless they are already.
        change_log: up to the last epoch of the job, or of its own.
        rate: at most so many epochs per second.
        on_epoch: is told of every epoch closed.
        clock: seconds, of any origin.
        sleep: waits so many seconds.

    Raises:
        InputError: somebody is enrolled whom the log does not name.
    """
    positions = {user: position for position, user in enumerate(change_log.users)}
    _check_users(producer, change_log, positions)
    producer.enrol(change_log.users)
    order = np.array([positions[user] for user in producer.users], np.intp)
    started = clock()
    values = change_log.values_by_epoch()
    for done, (epoch, now) in enumerate(islice(enumerate(values, 1), producer.closed_epoch, None)):
        if rate is not None:
            sleep(max(0.0, started + done / rate - clock()))
        producer.report_all(epoch, now[order])
        producer.close(epoch)
        on_epoch(epoch)


def _check_users(producer: Producer, change_log: ValueLog, known: Container[str]) -> None:
    missing = [user for user in producer.users if user not in known]
    if missing:
        raise InputError(
            f"{change_log.bad_rows.name}: {len(missing):,} of the {len(producer.users):,} users "
            f"enrolled with producer {producer.name} are missing, {missing[0]!r} for one: "
            "give the input it began with, or another --name"
        )


class LiveProducer:
    """Closes epochs by the clock, with the values that have come until then.

    A user is enrolled with its first row, and from then on present with the value it had last;
    where users hold sets of items, with those of the epoch, be they none. A file beside the
    producer's state keeps these values from run to run, so that who is present never depends on who
    has changed.

    Args:
        producer: sends the reports.
        folder: of its state; None keeps nothing.
        on_epoch: is told of every epoch closed.
    """

    def __init__(
        self,
        producer: Producer,
        folder: Path | None,
        on_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self._producer = producer
        self._path = None if folder is None else folder / "values.json"
        self._on_epoch = on_epoch
        self._values: dict[str, int] = {}
        self._sets: dict[str, list[int]] = {}
        self._kept = True
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_bytes())
            if self._slots is None:
                self._values = kept
            else:
                # Those of an epoch that is closed are known to be users, and no more.
                closed = kept["epoch"] <= producer.closed_epoch
                self._sets = {user: [] if closed else held for user, held in kept["sets"].items()}

    @property
    def _slots(self) -> int | None:
        return self._producer.job.domain.slots

    def take(self, events: Iterable[Event]) -> None:
        """Do what a `LiveSource` says has happened."""
        for event in events:
            match event:
                case Change(_, user, value):
                    self._values[user] = value
                    self._kept = False
                case Held(_, user, items):
                    self._hold(user, items)
                case CloseEpoch(epoch):
                    self._close(epoch)

    def keep(self) -> None:
        """Write the values down for the next run."""
        if self._path is None or self._kept:
            return
        fresh = self._path.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self._to_keep(), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._kept = True

    def _close(self, epoch: int) -> None:
        # First: what an epoch was closed with is known to the next run.
        self.keep()
        values = self._values if self._slots is None else self._sets
        self._producer.enrol(list(values))
        self._producer.report(epoch, values)
        self._producer.close(epoch)
        self._sets = {user: [] for user in self._sets}
        self._on_epoch(epoch)

    def _hold(self, user: str, items: Iterable[int]) -> None:
        """Take in items of the running epoch, as far as there may be more."""
        assert self._slots is not None
        held = self._sets.setdefault(user, [])
        self._sets[user] = list(dict.fromkeys([*held, *items]))[: self._slots]
        self._kept = False

    def _to_keep(self) -> dict[str, Any]:
        if self._slots is None:
            return dict(self._values)
        return {"epoch": self._producer.closed_epoch + 1, "sets": self._sets}


def produce_live(
    live: LiveProducer, source: LiveSource, read: ReadUntil, clock: Callable[[], datetime]
) -> None:
    """Read rows until the input ends or the job does.

    Args:
        live: takes the events.
        source: begins after the last epoch that the producer of `live` has closed.
        read: where the rows come from.
        clock: the time now, with a zone.

    Raises:
        InputError: as `LiveSource.receive`.
    """
    try:
        live.take(source.tick(clock()))
        while source.deadline is not None:
            data = read(source.deadline)
            if data:
                live.take(source.receive(data, clock()))
            elif data is None:
                live.take(source.tick(clock()))
            else:
                live.take(source.end(clock()))
                return
    finally:
        live.keep()
