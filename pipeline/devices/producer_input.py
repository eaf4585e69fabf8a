"""Feed a producer from a change log, epoch by epoch, or from live rows.

Both kinds of input start after the last epoch that the producer has closed, so an interrupted run
can be repeated with the same arguments.

Which users are enrolled and present is public. It never depends on values, or on when rows arrive.

* With a user list, the enrolled users are those on the list.
* Without a user list, the enrolled users are all users with a row, including bad rows and rows
  outside the horizon, in the file with which the producer starts. All of them are enrolled before
  the producer's first epoch.
* Every enrolled user is present at every closed epoch, with its last value.
* Rows of unknown users are not used; `unknown_users` is the number of these users.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import BadRow, InputError, counted
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.input_store import InputStore, WaitingRow, histories_of
from dpstream.pipeline.devices.item_log import ValueLog, load_job_log
from dpstream.pipeline.devices.live import (
    Change,
    CloseEpoch,
    Event,
    Happened,
    Held,
    Listed,
    LiveSource,
)
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.topic_claims import reject_reader_of_topic
from dpstream.pipeline.devices.users import check_grouped, enroll_users
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.whole_files import naming

if TYPE_CHECKING:
    from dpstream.pipeline.devices.user_histories import UserHistories

# Waits for bytes until a deadline; returns them, b"" at the end of input, or None at the deadline.
ReadUntil: TypeAlias = Callable[[datetime], bytes | None]


def load_input(
    job: Job,
    path: Path,
    *,
    users: Collection[str] | None,
    to_epoch: int | None = None,
    skip_bad_rows: bool = False,
    input_format: InputFormat | None = None,
) -> ValueLog:
    """Load the change log, item log or event log that a job's producer reports.

    The input ends with `to_epoch`, by default the job's last epoch. `users` is the user list; None
    means all users with a row. Raises `InputError` as `load_job_log` does, and if a recurring job
    lacks `to_epoch`.
    """
    if to_epoch is not None and to_epoch < 1:
        raise InputError(f"--to-epoch: got {to_epoch}; expected at least 1")
    if to_epoch is None and job.epochs.renew:
        raise InputError(
            f"{path}: job {job.name} is recurring, so --to-epoch is required: the last epoch "
            "for which this input is complete. Reported epochs are public, so the last row "
            "must not determine them"
        )
    ends = [epoch for epoch in (to_epoch, job.last_epoch) if epoch is not None]
    return load_job_log(
        *(job, path),
        last_epoch=min(ends),
        skip_bad_rows=skip_bad_rows,
        users=users,
        input_format=input_format,
    )


def input_warnings(log: ValueLog) -> tuple[str, ...]:
    return (*([str(log.bad_rows)] if log.bad_rows.total else []), *log.warnings)


def enrollment(log: ValueLog) -> str:
    users = counted(len(log.users), "user")
    if log.on_user_list:
        return f"{users} on the user list, which is public"
    return f"{users} with a row in the input; the list of these users is public"


def value_warnings(log: ValueLog, job: Job) -> Iterator[str]:
    """Yield warnings about how values affect estimates, for commands that read the ground truth.

    The warnings depend on values, so `produce`, whose output must not depend on values, omits them.
    """
    if not isinstance(log, ChangeLog) or job.domain.columns is not None:
        return
    domain, complete = job.domain, getattr(job.parameters, "complete", False)
    holders = len(np.unique(log.user_indices[log.values != 0]))
    hidden = log.on_user_list or log.initial or complete
    if not hidden and 0 < holders == len(log.users):
        yield (
            "every user in the input has a nonzero value at some epoch, so the published exact "
            "population size reveals how many users ever had one: list all users with --users FILE"
        )
    if complete and not log.initial:
        without = np.concatenate(
            [np.flatnonzero(log.values_at(1) == 0), log.user_indices[log.values == 0]]
        )
        if len(without):
            yield (
                f"{len(np.unique(without)):,} of {len(log.users):,} users have no item at some "
                "epoch, but 'complete' assumes that everyone has one: such a user counts as an "
                "equal part of every item. Remove parameters.complete, or add an item for them"
            )
    if isinstance(domain, NumericDomain) and not domain.optional:
        first = int(np.count_nonzero(log.values_at(1) == domain.initial))
        if first:
            bucket = domain.items[domain.initial - 1]
            yield (
                f"{first:,} of {len(log.users):,} users count in {bucket} at the first epoch: "
                "users count there until their first row (parameters.initial)"
            )
    later = len(log.epochs) and log.epochs[-1] > 1
    if job.measures is None and domain.kind == "value" and later and log.values.all():
        yield (
            "no user's value returns to 0 in the input, so each epoch counts the users who had "
            "value 1 at any time until then. If a row is an event, add a row with value 0 for "
            "the next epoch"
        )


def produce_change_log(
    producer: Producer,
    change_log: ValueLog,
    *,
    rate: float | None = None,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> int:
    """Close every open epoch in the log; all users are present at every epoch.

    The users of the log are enrolled. After the producer's first closed epoch, users are enrolled
    only from a user list, because a later first row reveals something about a value. At most `rate`
    epochs are closed per second. Returns the number of users with rows who are not enrolled. Raises
    `InputError` if an enrolled user is not in the log, or the producer reads a topic.
    """
    reject_reader_of_topic(producer)
    positions = {user: position for position, user in enumerate(change_log.users)}
    _check_users(producer, change_log.users, change_log.bad_rows.name)
    if change_log.on_user_list or not _has_started(producer):
        producer.enroll(change_log.users, groups_of(change_log))
    order = np.array([positions[user] for user in producer.users], np.intp)
    started = time.monotonic()
    values = change_log.values_by_epoch()
    for done, (epoch, now) in enumerate(islice(enumerate(values, 1), producer.closed_epoch, None)):
        if rate is not None:
            time.sleep(max(0.0, started + done / rate - time.monotonic()))
        producer.report_all(epoch, now[order])
        producer.close(epoch)
        on_epoch(epoch)
    return change_log.unknown_users + len(change_log.users) - len(order)


def groups_of(log: ValueLog) -> list[int] | None:
    groups: NDArray[np.int64] | None = getattr(log, "groups", None)
    return None if groups is None else groups.tolist()


def _has_started(producer: Producer) -> bool:
    return producer.closed_epoch >= producer.first_epoch


def _check_users(producer: Producer, users: Iterable[str], name: str) -> None:
    known = set(users)
    missing = [user for user in producer.users if user not in known]
    if missing:
        raise InputError(
            f"{name}: {len(missing):,} of the {len(producer.users):,} users enrolled with "
            f"producer {producer.name} are missing, for example {missing[0]!r}: use the "
            "original input and user list (--users), or another --name"
        )


class LiveProducer:
    """Consumer of live events: closes epochs by the clock, with the values received until then.

    Users are enrolled before the first epoch is closed: by a user list, by rows before epoch 1 that
    have no value, or by calls to the producer. Every enrolled user is present at every closed
    epoch, with its last value, or with its items at the epoch, which can be none. A file in
    `folder`, next to the producer's state, stores the values between runs; None saves nothing.
    Events of jobs with measures are stored in the producer's state. Raises `InputError` if an
    enrolled user is not on the user list, or if values never change.
    """

    def __init__(
        self,
        producer: Producer,
        folder: Path | None,
        on_epoch: Callable[[int], None] = lambda epoch: None,
        *,
        user_list: Collection[str] = (),
        name: str = "the user list",
    ) -> None:
        if producer.job.domain.columns is not None and producer.job.measures is None:
            raise InputError(
                f"job {producer.job.name} collects {producer.job.domain.about}, which do not "
                "change. Pass them with --input FILE"
            )
        reject_reader_of_topic(producer)
        self._producer = producer
        self._path = None if folder is None else folder / "values.json"
        self._on_epoch = on_epoch
        self._values: dict[str, int] = {}
        self._sets: dict[str, list[int]] = {}
        self._saved = True
        self._listed: list[str] = []
        self._unknown_users: set[str] = set()
        job = producer.job
        self._store = InputStore(producer.store)
        self._histories = histories_of(job, self._store)
        self._rows: list[WaitingRow] = []
        if not user_list and not producer.users:
            check_grouped(job)
        if user_list:
            _check_users(producer, user_list, name)
            enroll_users(producer, user_list)
        self._enrolled = set(producer.users)
        if self._path is not None and self._path.exists():
            saved = json.loads(self._path.read_bytes())
            if self._slots is None:
                self._values = saved
            elif saved["epoch"] > producer.closed_epoch:
                self._sets = saved["sets"]
        if _has_started(producer):
            self._drop_unknown_users()

    @property
    def unknown_users(self) -> int:
        return len(self._unknown_users | self._unlisted())

    @property
    def _slots(self) -> int | None:
        return self._producer.job.domain.slots

    def warnings(self) -> tuple[str, ...]:
        return () if self._histories is None else tuple(self._histories.clamped.warnings())

    def take(self, events: Iterable[Event]) -> None:
        """Process events from a `LiveSource`; raise `InputError` if no user is enrolled in time."""
        for event in events:
            match event:
                case Listed(user):
                    self._listed.append(user)
                case Change(_, user, value):
                    if self._takes(user):
                        self._values[user] = value
                        self._saved = False
                case Held(_, user, items):
                    if self._takes(user):
                        self._hold(user, items)
                case Happened(epoch, user, moment, fields):
                    if self._takes(user):
                        self._rows.append(WaitingRow(epoch, 0, 0, user, moment, fields))
                case CloseEpoch(epoch):
                    self._close(epoch)
        self._enroll_listed()

    def _takes(self, user: str) -> bool:
        if user in self._enrolled:
            return True
        self._check_enrolled()
        if not _has_started(self._producer):
            return True
        self._unknown_users.add(user)
        return False

    def _enroll_listed(self) -> None:
        listed, self._listed = self._listed, []
        fresh = [user for user in listed if user not in self._enrolled]
        if _has_started(self._producer):
            self._unknown_users.update(fresh)
        elif fresh:
            self._producer.enroll(fresh)
            self._enrolled.update(fresh)

    def _check_enrolled(self) -> None:
        if not self._enrolled and not self._listed:
            raise InputError(
                "no users are enrolled. List all users before the first value arrives: with "
                "--users FILE"
                + (
                    ", or with a row without a value for each user, placed before epoch 1 "
                    "('alice,0,' below the header user,epoch,value)"
                    if self._histories is None
                    else ""
                )
            )

    def _unlisted(self) -> set[str]:
        return (self._values.keys() | self._sets.keys()) - self._enrolled

    def _drop_unknown_users(self) -> None:
        unknown_users = self._unlisted()
        self._unknown_users |= unknown_users
        for user in unknown_users:
            self._values.pop(user, None)
            self._sets.pop(user, None)
        self._saved = self._saved and not unknown_users

    def keep(self) -> None:
        if self._rows:
            with self._store.transaction():
                self._store.add_rows(self._rows)
            self._rows = []
        if self._path is None or self._saved:
            return
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with naming(fresh), open(descriptor, "w") as file:
            json.dump(self._to_keep(), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._saved = True

    def _close(self, epoch: int) -> None:
        self._check_enrolled()
        self._enroll_listed()
        if not _has_started(self._producer):
            self._drop_unknown_users()
        # Saved first, so that the next run knows the values with which an epoch was closed.
        self.keep()
        if self._histories is not None:
            self._close_with_events(epoch, self._histories)
        else:
            self._producer.report_all(epoch, self._everybody())
            self._producer.close(epoch)
            self._sets = {}
        self._on_epoch(epoch)

    def _close_with_events(self, epoch: int, histories: UserHistories) -> None:
        rows = list(self._store.rows_to(epoch))
        known = [row for row in rows if row.user in self._enrolled]
        self._unknown_users |= {row.user for row in rows} - self._enrolled
        closing = histories.close(epoch, known, self._producer.users)

        def keep() -> None:
            histories.keep(closing)
            self._store.delete_rows_to(epoch)

        self._producer.report_all(epoch, closing.values)
        self._producer.close_together(epoch, keep)
        histories.take(closing)

    def _everybody(self) -> NDArray[np.int64]:
        users, slots = self._producer.users, self._slots
        if slots is None:
            initial = self._producer.job.domain.initial
            return np.array([self._values.get(user, initial) for user in users], np.int64)
        values = np.zeros((len(users), slots), np.int64)
        for position, user in enumerate(users):
            items = self._sets.get(user, [])
            values[position, : len(items)] = items
        return values

    def _hold(self, user: str, items: Iterable[int]) -> None:
        assert self._slots is not None
        held = self._sets.setdefault(user, [])
        self._sets[user] = list(dict.fromkeys([*held, *items]))[: self._slots]
        self._saved = False

    def _to_keep(self) -> dict[str, Any]:
        if self._slots is None:
            return dict(self._values)
        return {"epoch": self._producer.closed_epoch + 1, "sets": self._sets}


def produce_live(
    live: LiveProducer,
    source: LiveSource,
    read: ReadUntil,
    clock: Callable[[], datetime],
    notify: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Read rows until the input or the job ends.

    `source` starts after the last epoch that the producer of `live` has closed. `notify` receives a
    sentence about each of the first bad rows. Raises `InputError` as `LiveSource.receive` and
    `LiveProducer.take` do.
    """
    logged: set[BadRow] = set()

    def take(events: Iterable[Event]) -> None:
        for row in source.bad_rows.first:
            if row not in logged:
                notify(f"{source.bad_rows.name}:{row.line}: {row.reason}; skipped")
        logged.update(source.bad_rows.first)
        live.take(events)

    try:
        take(source.tick(clock()))
        while source.deadline is not None:
            data = read(source.deadline)
            if data:
                take(source.receive(data, clock()))
            elif data is None:
                take(source.tick(clock()))
            else:
                take(source.end(clock()))
                return
    finally:
        live.keep()
