"""Test a topic of events: each counts once, as in a file, even if the producer is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Action, LogRecord, LogSlice, Result, Steps, carry_out
from dpstream.pipeline.devices import producer_store
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.produce_topic import produce_as_they_come, produce_to
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer, produce_change_log
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import BadRows, InputError
from dpstream.pipeline.devices.topic_input import TopicInput
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role

EPOCHS = 4
START = datetime(2024, 3, 30, tzinfo=UTC)
DAY = timedelta(days=1)
USER_LIST = ["ann", "bob", "cid", "dan"]
JOB = """
name: topical
protocol: future_rand
parameters: {epsilon: 2, max_changes: 2}
epochs: {count: 4, start: 2024-03-30, length: P1D}
"""
Event = dict[str, Any]
Noted = dict[int, dict[str, Any]]


class Killed(BaseException):
    """Simulated death of the process."""


@dataclass
class Fuse:
    """Simulate a kill after `left` calls, or never if None; count the calls."""

    left: int | None = None
    met: int = 0

    def burn(self) -> None:
        self.met += 1
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


@dataclass
class Events:
    partitions: list[list[LogRecord]]
    fuse: Fuse = field(default_factory=Fuse)
    deleted: int = 0

    @classmethod
    def of(cls, events: Sequence[Event | bytes], partitions: int = 2) -> Events:
        held: list[list[LogRecord]] = [[] for _ in range(partitions)]
        for number, event in enumerate(events):
            held[number % partitions].append(record_of(event, len(held[number % partitions])))
        return cls(held)

    def starts(self) -> Mapping[int, int]:
        return dict.fromkeys(range(len(self.partitions)), self.deleted)

    def ends(self) -> Mapping[int, int]:
        return {number: len(held) for number, held in enumerate(self.partitions)}

    def read(self, partition: int, start: int, stop: int) -> LogSlice:
        self.fuse.burn()
        end = min(start + 2, stop)
        return LogSlice(tuple(self.partitions[partition][start:end]), end)


def record_of(event: Event | bytes, offset: int) -> LogRecord:
    if isinstance(event, bytes):
        return LogRecord(offset, event)
    stamp = event.get("stamp", START)
    value = {key: each for key, each in event.items() if key != "stamp"}
    return LogRecord(offset, json.dumps(value).encode(), int(1000 * stamp.timestamp()))


class FusedTransport:
    def __init__(self, log: MemoryLog, fuse: Fuse) -> None:
        self._driver, self._fuse = MemoryDriver(log), fuse

    def run(self, steps: Steps[Result], /) -> Result:
        return carry_out(steps, self._carry_out)

    def _carry_out(self, action: Action) -> object:
        self._fuse.burn()

        def only() -> Steps[object]:
            return (yield action)

        return self._driver.run(only())


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip disk syncs: a killed process loses no completed write."""
    settings = producer_store._SETTINGS.replace("synchronous = FULL", "synchronous = OFF")
    monkeypatch.setattr(producer_store, "_SETTINGS", settings)


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    fuse = Fuse()
    durably = ProducerStore.transaction

    @contextmanager
    def transaction(store: ProducerStore) -> Iterator[None]:
        with durably(store):
            yield
            fuse.burn()
        fuse.burn()

    monkeypatch.setattr(ProducerStore, "transaction", transaction)
    return fuse


@cache
def deployed(text: str = JOB) -> DeployedJob:
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


class Noting(Producer):
    noted: Noted

    def report_all(self, epoch: int, values: np.ndarray[Any, Any]) -> None:
        self.noted[epoch] = dict(zip(self.users, values.tolist(), strict=True))
        super().report_all(epoch, values)


@dataclass(frozen=True)
class Done:
    warnings: tuple[str, ...]
    offsets: dict[int, int]
    bad_rows: BadRows
    unknown_users: int

    @classmethod
    def of(cls, source: TopicInput) -> Done:
        return cls(source.warnings(), source.offsets, source.bad_rows, source.unknown_users)


@contextmanager
def opened(
    folder: Path | None,
    log: MemoryLog,
    noted: Noted,
    fuse: Fuse | None = None,
    *,
    job: DeployedJob | None = None,
    first_epoch: int = 1,
    seed: int = 1,
) -> Iterator[Noting]:
    producer = Noting(
        job or deployed(),
        folder,
        name="gateway",
        transport=FusedTransport(log, fuse or Fuse()),
        first_epoch=first_epoch,
        generators=lambda purpose, number: seeded_generator(seed, len(purpose), number),
    )
    producer.noted = noted
    try:
        yield producer
    finally:
        producer.shut()


def reader_of(job: DeployedJob, input_format: InputFormat = AS_IT_IS) -> RowReader:
    return RowReader(job.domain, job.epochs.calendar, input_format)


def batches(log: MemoryLog) -> list[tuple[int, bytes]]:
    found = {}
    for value in log.values(Role.REPORTS):
        if kind_of(value) is RecordType.BATCH:
            batch = decode_batch(value)
            found[batch.batch] = (batch.epoch, batch.words.values.tobytes())
    return sorted(found.values())


def time_of(day: float) -> str:
    return (START + day * DAY).isoformat()


EVENTS: list[Event | bytes] = [
    {"user": "ann", "time": time_of(0.1), "value": 1},
    {"user": "bob", "time": time_of(2.5), "value": 1},
    {"user": "ann", "time": time_of(0.05), "value": 0},  # older than ann's first event
    b"no JSON",
    {"user": "cid", "time": time_of(-3), "value": 1},
    {"user": "cid", "time": time_of(1.5), "value": 0},
    {"user": "eve", "time": time_of(1.5), "value": 1},  # an unknown user
    {"user": "ann", "time": time_of(3.5), "value": 0},
    {"user": "bob", "time": time_of(9), "value": 0},  # after the last epoch
    {"user": "cid", "time": time_of(3.9), "value": 1},
]


def from_file(folder: Path, events: Sequence[Event | bytes], users: list[str] | None) -> Any:
    path = folder / "events.jsonl"
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in events]
    path.write_bytes(b"\n".join(lines))
    job = deployed()
    log = load_change_log(
        path,
        domain=job.domain,
        calendar=job.epochs.calendar,
        last_epoch=EPOCHS,
        users=users,
        skip_bad_rows=True,
    )
    return {
        epoch: dict(zip(log.users, log.values_at(epoch).tolist(), strict=True))
        for epoch in range(1, EPOCHS + 1)
    }


def run_to(
    folder: Path | None,
    events: Events,
    log: MemoryLog,
    noted: Noted,
    fuse: Fuse | None = None,
    *,
    to: int = EPOCHS,
    user_list: Sequence[str] = USER_LIST,
    seed: int = 1,
    **options: Any,
) -> Done:
    with opened(folder, log, noted, fuse, seed=seed) as producer:
        source = TopicInput(
            producer, reader_of(producer.job), "events", user_list=user_list, **options
        )
        produce_to(source, producer, events, to)
        return Done.of(source)


def test_events_yield_the_same_reports_as_rows_of_a_file(tmp_path: Path) -> None:
    noted: Noted = {}
    source = run_to(None, Events.of(EVENTS), MemoryLog(), noted)
    assert noted == from_file(tmp_path, EVENTS, USER_LIST)
    assert source.unknown_users == 1
    assert not any(": stored" in each for each in source.warnings), "drawn rows are deleted"
    assert (source.bad_rows.total, source.bad_rows.first[0].line) == (1, 1)
    assert source.bad_rows.first[0].reason.endswith("'no JSON' (partition 1)")


def test_topic_input_does_not_depend_on_partitions_or_polls(tmp_path: Path) -> None:
    expected = from_file(tmp_path, EVENTS, USER_LIST)
    for partitions in (1, 3, 5):
        for to in range(EPOCHS):
            noted: Noted = {}
            events, log = Events.of(EVENTS, partitions), MemoryLog()
            folder = tmp_path / f"{partitions}-{to}"
            run_to(folder, events, log, noted, to=to)
            run_to(folder, events, log, noted, to=EPOCHS)
            assert noted == expected, (partitions, to)


def test_killed_reader_counts_each_event_once(tmp_path: Path, fuse: Fuse) -> None:
    undisturbed, events = MemoryLog(), Events.of(EVENTS)
    expected: Noted = {}
    events.fuse = fuse
    run_to(tmp_path / "undisturbed", events, undisturbed, expected, fuse)
    assert expected == from_file(tmp_path, EVENTS, USER_LIST)

    points = fuse.met
    assert points > 25
    killed = 0
    for at in range(points):
        events, log = Events.of(EVENTS), MemoryLog()
        noted: Noted = {}
        events.fuse = fuse
        folder = tmp_path / str(at)
        for left in (at, at // 2, None):
            fuse.left = left
            try:
                source = run_to(folder, events, log, noted, fuse)
            except Killed:
                killed += 1
                continue
            assert source.offsets == {0: 5, 1: 5}
        fuse.left = None
        assert noted == expected, at
        assert batches(log) == batches(undisturbed), at
    assert killed > points


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_later_events_do_not_change_a_closed_epoch(tmp_path: Path, fuse: Fuse, at: int) -> None:
    events, log = Events.of(EVENTS), MemoryLog()
    noted: Noted = {}
    fuse.left = at
    with suppress(Killed):
        run_to(tmp_path, events, log, noted, fuse)
    fuse.left = None
    drawn = batches(log)
    with opened(tmp_path, log, {}) as producer:
        closed = producer.closed_epoch
    drawn = [each for each in batches(log) if each[0] <= closed]
    for partition in events.partitions:
        event = {"user": "dan", "time": time_of(0.5), "value": 1}
        partition.append(record_of(event, len(partition)))
    # Other randomness: an epoch drawn again would differ.
    run_to(tmp_path, events, log, noted, seed=2)
    assert [each for each in batches(log) if each[0] <= closed] == drawn
    assert noted[EPOCHS]["dan"] == (1 if closed < EPOCHS else 0)


class Clock:
    def __init__(self, events: Events, coming: list[tuple[float, Event]]) -> None:
        self.now = START
        self._events, self._coming = events, coming

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=max(seconds, 0.2 * DAY.total_seconds()))
        while self._coming and START + self._coming[0][0] * DAY <= self.now:
            _, event = self._coming.pop(0)
            held = self._events.partitions[0]
            held.append(record_of(event, len(held)))


def run_live(
    folder: Path | None,
    events: Events,
    clock: Clock,
    noted: Noted,
    fuse: Fuse | None = None,
    log: MemoryLog | None = None,
) -> Done:
    with opened(folder, log or MemoryLog(), noted, fuse) as producer:
        source = TopicInput(producer, reader_of(producer.job), "events", user_list=USER_LIST)
        calendar = producer.job.epochs.calendar
        assert calendar is not None
        produce_as_they_come(source, producer, events, calendar, clock, sleep=clock.sleep)
        return Done.of(source)


STAMPED = [
    (day, {"user": user, "value": value, "stamp": START + day * DAY})
    for day, user, value in [(0.2, "ann", 1), (1.2, "bob", 1), (1.9, "ann", 0), (3.99, "cid", 1)]
]
HELD = {
    1: {"ann": 1, "bob": 0, "cid": 0, "dan": 0},
    2: {"ann": 0, "bob": 1, "cid": 0, "dan": 0},
    3: {"ann": 0, "bob": 1, "cid": 0, "dan": 0},
    4: {"ann": 0, "bob": 1, "cid": 1, "dan": 0},
}


@pytest.mark.parametrize("length", ["P1D", "P1M", "PT1S"])
@pytest.mark.parametrize("stamp", [-1, 1_711_800_000_000_000, 1_711_800_000_000_000_000, 2**63 - 1])
def test_event_with_an_invalid_timestamp_counts_as_bad(stamp: int, length: str) -> None:
    job = deployed(JOB.replace("P1D", length))
    records = [
        LogRecord(0, b'{"user": "ann", "value": 1}', stamp),
        LogRecord(1, b'{"user": "bob", "value": 1}', int(1000 * START.timestamp())),
    ]
    noted: Noted = {}
    with opened(None, MemoryLog(), noted, job=job) as producer:
        source = TopicInput(producer, reader_of(job), "events", everybody=True)
        produce_to(source, producer, Events([records]), 1)
    # The invalid timestamp does not affect enrollment.
    assert noted == {1: {"ann": 0, "bob": 1}}
    (bad,) = source.bad_rows.first
    assert (bad.line, "is not a time from 1970 to 9999" in bad.reason) == (0, True)


def test_epochs_close_after_the_backlog_from_an_outage_is_read(tmp_path: Path, fuse: Fuse) -> None:
    for at in range(1, 64, 5):
        events, log = Events([[]]), MemoryLog()
        noted: Noted = {}
        events.fuse = fuse
        clock = Clock(events, list(STAMPED))
        fuse.left = at
        try:
            run_live(tmp_path / str(at), events, clock, noted, fuse, log)
        except Killed:
            clock.sleep(2.5 * DAY.total_seconds())
        fuse.left = None
        run_live(tmp_path / str(at), events, clock, noted, fuse, log)
        assert noted == HELD, at


@pytest.mark.parametrize(
    ("everybody", "users"), [(True, ["ann", "bob", "cid", "dan", "eve"]), (False, ["cid", "dan"])]
)
def test_users_of_early_events_enroll_if_there_is_no_user_list(
    tmp_path: Path, everybody: bool, users: list[str]
) -> None:
    listed: list[Event | bytes] = [
        {"user": user, "time": time_of(-1), "value": value}
        for user, value in [("cid", ""), ("dan", None)]
    ]
    noted: Noted = {}
    events = Events.of(listed + EVENTS)
    run_to(tmp_path, events, MemoryLog(), noted, user_list=(), everybody=everybody, to=2)
    events.partitions[0].append(record_of({"user": "new", "time": time_of(2), "value": 1}, 6))
    run_to(tmp_path, events, MemoryLog(), noted, user_list=(), everybody=everybody)
    assert sorted(noted[1]) == sorted(noted[4]) == users


def test_topic_without_enrolled_users_is_rejected(tmp_path: Path) -> None:
    events = Events.of([{"user": "ann", "time": time_of(0), "value": 1}])
    with pytest.raises(InputError, match="no users are enrolled"):
        run_to(tmp_path, events, MemoryLog(), {}, user_list=(), everybody=False)


def test_events_written_before_an_epoch_ends_are_read_after_it() -> None:
    """An event that is written while the clock is read belongs to the epoch that has ended."""
    job = deployed(JOB)
    calendar = job.epochs.calendar
    assert calendar is not None
    events = Events.of([], 1)
    noted: Noted = {}
    requested = iter(range(1, 99))

    def clock() -> datetime:
        if not events.partitions[0]:
            late = {"user": "ann", "value": 1, "stamp": START + 0.99 * DAY}
            events.partitions[0].append(record_of(late, 0))
        return START + next(requested) * DAY

    with opened(None, MemoryLog(), noted, job=job) as producer:
        source = TopicInput(producer, reader_of(job), "events", user_list=USER_LIST)
        produce_as_they_come(source, producer, events, calendar, clock, sleep=lambda seconds: None)
    assert noted[1]["ann"] == 1


def test_events_deleted_before_reading_are_reported(tmp_path: Path) -> None:
    events, log = Events.of(EVENTS), MemoryLog()
    told: list[str] = []
    run_to(tmp_path, events, log, {}, to=1)
    for partition in events.partitions:
        partition += [record_of(b"", len(partition)), record_of(b"", len(partition) + 1)]
    events.deleted = 7
    with opened(tmp_path, log, {}) as producer:
        source = TopicInput(producer, reader_of(producer.job), "events", user_list=USER_LIST)
        produce_to(source, producer, events, 2, notify=told.append)
        assert source.offsets == {0: 7, 1: 7}
    assert [each.partition(":")[0] for each in told] == [
        f"2 offsets of partition {number} were deleted before they were read" for number in (0, 1)
    ]


def test_recreated_topic_is_rejected(tmp_path: Path) -> None:
    run_to(tmp_path, Events.of(EVENTS), MemoryLog(), {}, to=1)
    with pytest.raises(InputError, match="ends at offset 1, but was read up to 5: the topic"):
        run_to(tmp_path, Events.of(EVENTS[:2]), MemoryLog(), {})


def test_recreated_topic_with_more_events_is_rejected(tmp_path: Path) -> None:
    run_to(tmp_path, Events.of(EVENTS), MemoryLog(), {}, to=1, made="one")
    with pytest.raises(InputError, match="was recreated after producer gateway began"):
        run_to(tmp_path, Events.of([*EVENTS, *EVENTS]), MemoryLog(), {}, made="another")
    # If the topic id is unknown, now or at the producer's start, nothing is detected.
    for made in (None, "one"):
        run_to(tmp_path, Events.of(EVENTS), MemoryLog(), {}, made=made)
    run_to(tmp_path / "earlier", Events.of(EVENTS), MemoryLog(), {}, to=1)
    run_to(tmp_path / "earlier", Events.of(EVENTS), MemoryLog(), {}, made="one")


def test_producer_rejects_a_switch_to_another_input(tmp_path: Path) -> None:
    run_to(tmp_path / "topic", Events.of(EVENTS), MemoryLog(), {}, to=1)
    with opened(tmp_path / "topic", MemoryLog(), {}) as producer:
        with pytest.raises(InputError, match="started with topic events and stores its offsets"):
            TopicInput(producer, reader_of(producer.job), "others")
        with pytest.raises(InputError, match="reads a topic: continue with --from-topic"):
            LiveProducer(producer, None)
        rows = tmp_path / "all.csv"
        rows.write_text("user,epoch,value\n" + "".join(f"{user},1,0\n" for user in USER_LIST))
        with pytest.raises(InputError, match="reads a topic: continue with --from-topic"):
            produce_change_log(producer, load_change_log(rows, last_epoch=2))
        with pytest.raises(
            InputError, match=r"1 of the 4 users .* not on the user list, for example 'ann'"
        ):
            TopicInput(producer, reader_of(producer.job), "events", user_list=USER_LIST[1:])
    path = tmp_path / "rows.csv"
    path.write_text("user,epoch,value\nann,1,1\n")
    with opened(tmp_path / "file", MemoryLog(), {}) as producer:
        produce_change_log(producer, load_change_log(path, last_epoch=1))
        with pytest.raises(InputError, match="started with an input that is not a topic"):
            TopicInput(producer, reader_of(producer.job), "events")


def test_invalid_event_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"the first record: got 'who,value'; expected the columns .* --column user=who",
    ):
        run_to(tmp_path / "1", Events.of([{"who": "ann", "value": 1}]), MemoryLog(), {})
    input_format = InputFormat.model_validate_json('{"format": "csv"}')
    with (
        opened(None, MemoryLog(), {}) as producer,
        pytest.raises(InputError, match="got format csv; events from a topic must be JSON"),
    ):
        TopicInput(producer, reader_of(producer.job, input_format), "events")
    job = deployed(JOB.replace(", start: 2024-03-30, length: P1D", ""))
    with opened(None, MemoryLog(), {}, job=job) as producer:
        source = TopicInput(producer, reader_of(job), "events", user_list=USER_LIST)
        with pytest.raises(InputError, match="events have times, so the job file must set"):
            produce_to(source, producer, Events.of(EVENTS), 1)
