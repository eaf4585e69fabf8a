"""JSON events from a topic as input: each event counts once, even if the producer is killed.

Sans I/O: `TopicInput` receives records and calls to close an epoch. Events that were read wait in
the producer's own file (`input_store`), together with the offsets. The transaction that randomizes
an epoch also deletes the epoch's rows. Nothing is ever written to the cluster of the events: after
a restart, the offsets come from the file instead of a consumer group.

Events have the same meaning as live rows (`live`). In a job with measures, they enter the histories
of their users, which the same transaction stores. In other jobs, a value holds until it changes,
rows for a closed epoch are late, and for sets of items, epochs are independent. If the first events
contain neither epochs nor times, the timestamps of the records determine the epochs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord, LogSlice
from dpstream.pipeline.devices.bad_rows import SHOWN_BAD_ROWS, BadRow, BadRows, InputError, counted
from dpstream.pipeline.devices.columns import Placing
from dpstream.pipeline.devices.duplicates import RowAction, ranked, row_action
from dpstream.pipeline.devices.input_store import InputStore, Value, WaitingRow, histories_of
from dpstream.pipeline.devices.json_records import Keys, parse_object, records_of
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import RowCounts, Rows, parse_rows, stamped
from dpstream.pipeline.devices.topic_claims import claim_topic, store_placing, stored_placing
from dpstream.pipeline.devices.users import check_grouped, enroll_users
from dpstream.pipeline.values.times import shown

if TYPE_CHECKING:
    from dpstream.pipeline.devices.user_histories import ClosingEpoch


class EventLog(Protocol):
    def starts(self) -> Mapping[int, int]:
        """Return the offset of the first event that is still available, by partition."""

    def ends(self) -> Mapping[int, int]:
        """Return the offset that the next new event will have, by partition."""

    def read(self, partition: int, start: int, stop: int) -> LogSlice:
        """Read events with offsets in [start, stop); if none are left, the slice ends at `stop`."""


@dataclass(slots=True)
class _Fold:
    """Effect of closing an epoch on users' values, or on their histories."""

    values: dict[str, tuple[int, int]]
    sets: dict[str, list[int]]
    bad: list[BadRow]
    unknown_users: set[str]
    counts: Counter[str]
    closing: ClosingEpoch | None = None


class TopicInput:
    """Events that a producer has read from a topic.

    Args:
        topic: Name of the topic, with its cluster's name if that is not the job's cluster.
        user_list: Users to enroll; if empty, users who are listed or have an event.
        everybody: Without a user list, True enrolls all users with an event before the first epoch
            is closed. False enrolls users listed by an event without a value before epoch 1.
        made: Identity that distinguishes the topic from an earlier one with the same name.

    Raises:
        InputError: If the producer has started with another input, or assigned events to epochs
            differently. Also if an enrolled user is not on the list, or values never change.
    """

    def __init__(
        self,
        producer: Producer,
        reader: RowReader,
        topic: str,
        *,
        user_list: Collection[str] = (),
        everybody: bool = False,
        made: str | None = None,
    ) -> None:
        domain = producer.job.domain
        job = producer.job
        if domain.columns is not None and job.measures is None:
            raise InputError(
                f"job {producer.job.name} is about {domain.about}, which do not change: pass "
                "them with --input FILE"
            )
        if reader.input_format.format not in (None, "json"):
            raise InputError(
                f"got format {reader.input_format.format}; events from a topic must be JSON"
            )
        if reader.input_format.encoding not in (None, "utf-8"):
            raise InputError(
                f"got encoding {reader.input_format.encoding}; events from a topic must be UTF-8"
            )
        self._producer = producer
        self._reader = reader
        self._topic = topic
        self._everybody = everybody
        self._on_user_list = bool(user_list)
        self._store = InputStore(producer.store)
        self._histories = histories_of(job, self._store)
        if not user_list:
            check_grouped(job)
        claim_topic(producer, topic, made)
        self.bad_rows = BadRows(topic, place="offset ")
        self._counts = RowCounts()
        self._unused_events: Counter[str] = Counter()
        self._unknown_users: set[str] = set()
        self._keys = self._known_keys()
        if user_list:
            self._enroll_user_list(user_list)
        self._enrolled = set(producer.users)
        self._values = self._store.values()

    @property
    def offsets(self) -> dict[int, int]:
        """Next offset to read, by partition; partitions that were never read are omitted."""
        return self._store.offsets()

    @property
    def unknown_users(self) -> int:
        return len(self._unknown_users)

    def take(self, partition: int, events: LogSlice) -> None:
        """Store events and the next offset in one durable transaction.

        Raises `InputError` if the first event lacks a key, and `sqlite3.Error` if storing fails; in
        both cases, nothing is stored.
        """
        rows, bad = self._parsed(partition, events.records)
        begun = self._has_started
        with self._store.transaction():
            if rows is not None:
                self._store.add_rows(self._waiting(partition, rows))
                if not begun and not self._on_user_list:
                    self._store.add_users([*rows.users, *rows.named], listed=False)
                    self._store.add_users((user for _, user in rows.listed), listed=True)
            if self._keys is not None:
                store_placing(self._producer, self._keys.placing)
            self._store.set_offset(partition, events.end)
        if rows is not None:
            self._counts = self._counts.plus(rows.counts)
        if empty := sum(not record.value.strip() for record in events.records):
            self._unused_events["that are empty (tombstones): not used"] += empty
        self._skip(bad)

    def skip_to(self, partition: int, offset: int) -> None:
        with self._store.transaction():
            self._store.set_offset(partition, offset)

    def close(self, epoch: int) -> None:
        """Randomize an epoch's stored events, and delete the events in the same transaction.

        Raises `InputError` if no user is enrolled, and `ProducerError` if reports cannot be drawn
        or stored; in both cases, nothing changes.
        """
        if not self._has_started:
            self._enroll()
        fold = self._folded(epoch) if self._histories is None else self._with_events(epoch)
        held = self._held(fold)

        def keep() -> None:
            if self._histories is not None and fold.closing is not None:
                self._histories.keep(fold.closing)
            self._store.set_values(fold.values)
            self._store.delete_rows_to(epoch)
            self._store.forget_users()

        self._producer.report_all(epoch, held)
        try:
            self._producer.close_together(epoch, keep)
        finally:
            # The file is authoritative, because an epoch can be drawn without being sent.
            if self._producer.closed_epoch >= epoch:
                self._values.update(fold.values)
                if self._histories is not None and fold.closing is not None:
                    self._histories.take(fold.closing)
                self._unknown_users |= fold.unknown_users
                self._unused_events += fold.counts
                self._skip(fold.bad)

    def warnings(self) -> tuple[str, ...]:
        collected = [
            f"{counted(count, 'event')} {what}" for what, count in self._unused_events.items()
        ]
        if waiting := self._store.waiting():
            collected.append(f"{counted(waiting, 'event')} for open epochs: stored")
        collected += self._counts.warnings(self._reader)
        if self._histories is not None:
            collected += self._histories.clamped.warnings()
        if self.bad_rows.total:
            # The first ones were logged on arrival.
            more = f"\n{self.bad_rows}" if self.bad_rows.total > SHOWN_BAD_ROWS else ""
            collected.append(f"{counted(self.bad_rows.total, 'bad event')} skipped{more}")
        return tuple(f"{self._topic}: {warning}" for warning in collected)

    @property
    def _has_started(self) -> bool:
        return self._producer.closed_epoch >= self._producer.first_epoch

    def _known_keys(self) -> Keys | None:
        placing = stored_placing(self._producer, self._reader.input_format)
        if placing is None:
            return None
        domain = self._reader.domain
        return Keys.placed(placing, self._reader.input_format, domain.column, domain.fields)

    def _enroll_user_list(self, user_list: Collection[str]) -> None:
        missing = sorted(set(self._producer.users) - set(user_list))
        if missing:
            raise InputError(
                f"{len(missing):,} of the {len(self._producer.users):,} users enrolled with "
                f"producer {self._producer.name} are not on the user list, for example "
                f"{missing[0]!r}: use the original list (--users), or another --name"
            )
        enroll_users(self._producer, user_list)

    def _enroll(self) -> None:
        if not self._on_user_list:
            self._producer.enroll(self._store.users(listed=not self._everybody))
        self._enrolled = set(self._producer.users)
        if not self._enrolled:
            raise InputError(
                f"{self._topic}: no users are enrolled. List all users with --users FILE"
                + (
                    ", or with an event without a value for each user, placed before epoch 1"
                    if self._histories is None
                    else ""
                )
            )

    def _parsed(
        self, partition: int, records: Sequence[LogRecord]
    ) -> tuple[Rows | None, list[BadRow]]:
        texts = [(record.offset, record.value) for record in records]
        if self._keys is None:
            self._keys = self._keys_of(records)
        if self._keys is None:
            bad = []
            for offset, text in texts:
                if not text.strip():
                    continue
                try:
                    parse_object(text)
                except ValueError as error:
                    bad.append(BadRow(offset, str(error), anonymous=True))
            return None, self._placed(partition, bad)
        self._reader.check_placing(self._topic, self._keys.placing)
        rows, bad = parse_rows(records_of(self._keys, texts), self._keys.columns, self._reader)
        if self._keys.placing is Placing.ARRIVAL:
            assert self._reader.calendar is not None
            rows, unplaced = stamped(rows, records, self._reader.calendar)
            bad += unplaced
        return rows, self._placed(partition, bad)

    def _keys_of(self, records: Sequence[LogRecord]) -> Keys | None:
        """Derive the keys from the first event that has all keys.

        Events with an epoch or a time take precedence: a single event that has neither must not
        cause all other events to be assigned to epochs by their timestamps.
        """
        rejection: InputError | None = None
        by_arrival: Keys | None = None
        for record in records:
            try:
                first = parse_object(record.value)
            except ValueError:
                continue
            try:
                keys = Keys.of(
                    first,
                    self._reader.input_format,
                    crowd=self._reader.domain.column,
                    fields=self._reader.domain.fields,
                    stamped=True,
                    name=self._topic,
                )
            except InputError as error:
                rejection = rejection or error
                continue
            if keys.placing is not Placing.EPOCH and self._reader.calendar is None:
                rejection = rejection or InputError(
                    f"{self._topic}: events have times, so the job file must set epochs.start "
                    "and epochs.length"
                )
                continue
            if keys.placing is not Placing.ARRIVAL:
                return keys
            by_arrival = by_arrival or keys
        if by_arrival is None and rejection is not None:
            raise rejection
        return by_arrival

    def _placed(self, partition: int, bad: Sequence[BadRow]) -> list[BadRow]:
        return [replace(row, reason=f"{row.reason} (partition {partition})") for row in bad]

    def _waiting(self, partition: int, rows: Rows) -> Iterator[WaitingRow]:
        """Yield the rows that must wait for their epochs, and count all other rows."""
        job, closed = self._producer.job, self._producer.closed_epoch
        sets = job.domain.slots is not None and self._histories is None
        late = "too late to change them" if self._histories is None else "count in later windows"
        values: list[Value] = rows.values.tolist()
        for line, user, epoch, position, value in zip(
            rows.lines.tolist(),
            rows.users,
            rows.epochs.tolist(),
            rows.positions.tolist(),
            values,
            strict=True,
        ):
            if job.last_epoch is not None and epoch > job.last_epoch:
                self._unused_events[f"after epoch {job.last_epoch}: not used"] += 1
                continue
            if epoch <= closed and closed >= self._producer.first_epoch:
                if epoch >= 1:
                    self._unused_events[f"for closed epochs: {late}"] += 1
            elif sets and 1 <= epoch <= closed:
                first = closed + 1
                self._unused_events[
                    f"for epochs before {first}, the first of this producer: not used"
                ] += 1
            if sets and (epoch <= closed or epoch < 1):
                continue
            yield WaitingRow(epoch, partition, line, user, position, value)

    def _folded(self, epoch: int) -> _Fold:
        fold = _Fold({}, {}, [], set(), Counter())
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        for row in self._store.rows_to(epoch):
            if row.user not in self._enrolled:
                fold.unknown_users.add(row.user)
            elif self._producer.job.domain.slots is None:
                self._change(row, fold)
            elif row.epoch == epoch:
                items = row.value if isinstance(row.value, list) else [row.value]
                waiting[row.user] += [item for item in items if item]
        slots = self._producer.job.domain.slots or 0
        for user, items in waiting.items():
            held = list(dict.fromkeys(ranked(items, self._reader.input_format.duplicates)))
            fold.sets[user] = held[:slots]
            if len(held) > slots:
                fold.counts[f"beyond {slots} items per user: not used"] += len(held) - slots
        return fold

    def _with_events(self, epoch: int) -> _Fold:
        assert self._histories is not None
        rows = list(self._store.rows_to(epoch))
        known = [row for row in rows if row.user in self._enrolled]
        closing = self._histories.close(epoch, known, self._producer.users)
        unknown_users = {row.user for row in rows} - self._enrolled
        return _Fold({}, {}, [], unknown_users, Counter(), closing)

    def _change(self, row: WaitingRow, fold: _Fold) -> None:
        assert isinstance(row.value, int)
        rule = self._reader.input_format.duplicates
        if rule is None and self._keys is not None and self._keys.placing is Placing.ARRIVAL:
            # A broker can set the same timestamp for all records of a batch; the last row counts.
            rule = "last"
        newest = fold.values.get(row.user) or self._values.get(row.user)
        action = row_action(rule, newest, row.position, row.value)
        if action is RowAction.OLDER:
            fold.counts["older than an earlier event for the same user: not used"] += 1
        elif action is RowAction.CONTRADICTS:
            reason = f"contradicts an earlier event for user {shown(row.user)}"
            fold.bad += self._placed(row.partition, [BadRow(row.event, reason)])
        elif action.by_rule:
            fold.counts[f"with another value for the same user and time: the {rule} counts"] += 1
        if action.counts:
            fold.values[row.user] = (row.position, row.value)

    def _held(self, fold: _Fold) -> NDArray[np.int64]:
        if fold.closing is not None:
            return fold.closing.values
        domain, users = self._producer.job.domain, self._producer.users
        if domain.slots is None:
            nothing = (0, domain.initial)
            return np.array(
                [(fold.values.get(user) or self._values.get(user, nothing))[1] for user in users],
                np.int64,
            )
        values = np.zeros((len(users), domain.slots), np.int64)
        for position, user in enumerate(users):
            items = fold.sets.get(user, [])
            values[position, : len(items)] = items
        return values

    def _skip(self, bad: Sequence[BadRow]) -> None:
        self.bad_rows = self.bad_rows.plus(bad)
