"""Test a live source: for any arrival order, values at the close equal those of the change log."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.live import Change, CloseEpoch, Event, Held, LiveSource
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.times import EpochCalendar
from tests.support.new_jobs import new_job

START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTES = EpochCalendar(START, parse_duration("PT1M"))
HEADER = b"user,epoch,value\n"


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def changes(events: list[Event]) -> list[tuple[int, str, int]]:
    return [(e.epoch, e.user, e.value) for e in events if isinstance(e, Change)]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[str, list[tuple[float, str, str, int]]]:
    column = draw(st.sampled_from(["epoch", "time"]))
    if column == "epoch":
        places = st.integers(-2, 8).map(str)
    else:
        places = st.integers(-120, 480).map(lambda n: (START + timedelta(seconds=n)).isoformat())
    users = st.sampled_from(["ann", "bob", "two\nlines", 'a "quoted", name', "é"])
    row = st.tuples(st.floats(-1, 8), users, places, st.integers(0, 1))
    return column, sorted(draw(st.lists(row, min_size=1, max_size=25)), key=lambda row: row[0])


def line(*fields: object) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue().encode()


@given(arrivals(), st.integers(1, 3), st.sampled_from([0.0, 0.5, 2.5]))
def test_epoch_that_closes_uses_the_rows_read_so_far(
    tmp_path_factory: pytest.TempPathFactory,
    rows: tuple[str, list[tuple[float, str, str, int]]],
    first_epoch: int,
    lateness: float,
) -> None:
    column, arriving = rows
    path = tmp_path_factory.getbasetemp() / "so-far.csv"
    source = LiveSource(MINUTES, first_epoch, last_epoch=6, lateness=timedelta(minutes=lateness))
    read = line("user", column, "value")
    source.receive(read, at(-2))
    values: dict[str, int] = {}
    closed: list[int] = []

    def follow(events: list[Event]) -> None:
        for event in events:
            match event:
                case Change(epoch, user, value):
                    assert epoch == len(closed) + first_epoch, "changes belong to the running epoch"
                    values[user] = value
                case CloseEpoch(epoch):
                    closed.append(epoch)
                    assert {user for user, value in values.items() if value} == ones_at(epoch)

    def ones_at(epoch: int) -> set[str]:
        path.write_bytes(read)
        try:
            log = load_change_log(path, calendar=MINUTES, last_epoch=6, skip_bad_rows=True)
        except InputError:
            return set()  # no row up to epoch 6
        return {user for user, value in zip(log.users, log.values_at(epoch), strict=True) if value}

    for minute, user, place, value in arriving:
        follow(source.tick(at(minute)))
        row = line(user, place, value)
        read += row
        follow(source.receive(row, at(minute)))
    follow(source.tick(at(20)))
    assert closed == list(range(first_epoch, 7))
    assert source.deadline is None


@given(arrivals(), st.data())
def test_live_input_can_be_split_at_any_byte(
    rows: tuple[str, list[tuple[float, str, str, int]]], data: st.DataObject
) -> None:
    column, arriving = rows
    everything = b"\xef\xbb\xbf" + line("user", column, "value")
    everything += b"".join(line(*row[1:]) for row in arriving)
    everything = everything[: len(everything) - data.draw(st.integers(0, 1), "without line end")]
    cuts = data.draw(st.lists(st.integers(0, len(everything)), max_size=9).map(sorted))
    pieces = [everything[a:b] for a, b in zip([0, *cuts], [*cuts, len(everything)], strict=True)]

    whole, cut = (LiveSource(MINUTES, 1) for _ in range(2))
    expected = whole.receive(everything, at(0)) + whole.end(at(0)) + whole.tick(at(10))
    events = [event for piece in pieces for event in cut.receive(piece, at(0))]
    assert events + cut.end(at(0)) + cut.tick(at(10)) == expected
    assert (cut.bad_rows, cut.warnings()) == (whole.bad_rows, whole.warnings())


def test_epochs_close_by_the_clock() -> None:
    source = LiveSource(MINUTES, 1, last_epoch=3)
    assert source.tick(at(1) - timedelta(microseconds=1)) == []
    assert source.tick(at(1)) == [CloseEpoch(1)]
    assert source.epoch == 2
    assert source.tick(at(99)) == [CloseEpoch(2), CloseEpoch(3)]
    assert source.receive(HEADER + b"ann,3,1\n", at(99)) == []
    assert source.warnings() == ("standard input: 1 row after epoch 3: not used",)


def test_rows_for_later_epochs_are_buffered_up_to_a_bound() -> None:
    source = LiveSource(MINUTES, 1, hold=2)
    rows = b"ann,2,1\nbob,3,1\nzoe,2,1\nann,1,0\n"
    assert source.receive(HEADER + rows, at(0)) == [Change(1, "ann", 0)]
    assert source.warnings() == (
        "standard input: 1 row for later epochs, beyond the 2 buffered: lost",
        "standard input: 2 rows for later epochs: buffered, lost if the input ends here",
    )
    assert source.tick(at(2)) == [
        CloseEpoch(1),
        Change(2, "ann", 1),
        CloseEpoch(2),
        Change(3, "bob", 1),
    ]
    # Dropped rows free their memory.
    source.receive(b"ann,4,0\nbob,4,0\n", at(2))
    assert len(changes(source.tick(at(3)))) == 2


def test_late_row_applies_from_the_current_epoch() -> None:
    source = LiveSource(MINUTES, 1)
    source.receive(HEADER + b"ann,1,1\n", at(0))
    source.tick(at(2))
    assert source.receive(b"ann,2,0\n", at(2.5)) == [Change(3, "ann", 0)]
    # A late row has no effect if a newer value is known.
    assert source.receive(b"ann,1,1\n", at(2.5)) == []
    assert source.warnings() == (
        "standard input: 2 rows for closed epochs: too late to change them",
        "standard input: 1 row older than an earlier row for the same user: not used",
    )


@pytest.mark.parametrize(
    ("rows", "line_number", "reason"),
    [
        (b"ann,1,2\n", 2, "value '2' is not 0 or 1"),
        (b'"a\nb",1,1\n"c\nd",x,1\n', 4, "epoch 'x' is not an integer"),
        (b'"ann,1,1\n' + b"bob,1,1\n" * 20_000, 2, "field larger than field limit"),
        (b"ann,1,1\nann,1,0\n", 3, "contradicts an earlier line for user 'ann'"),
    ],
)
def test_bad_live_row_is_reported_with_its_line(rows: bytes, line_number: int, reason: str) -> None:
    source = LiveSource(MINUTES, 1)
    source.receive(HEADER + rows, at(0))
    assert changes(source.receive(b"zed,1,1\n", at(0))) == [(1, "zed", 1)]
    assert [row.line for row in source.bad_rows.first] == [line_number]
    assert reason in source.bad_rows.first[0].reason
    assert source.warnings() == ("standard input: 1 bad row skipped",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ann,1,1\n", "the first line: got 'ann,1,1'; expected"),
        (b'"user\n', "input:1: broken CSV"),
        (b"user,epoch,time,value\n", "has both columns epoch and time"),
        (b"x" * 2_000_000, "input:1: a line has more than 1,048,576 bytes"),
    ],
)
def test_unusable_live_input_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LiveSource(MINUTES, 1).receive(data, at(0))


@pytest.mark.parametrize("before", [b"", b'"'])
def test_overlong_live_line_is_not_buffered(before: bytes) -> None:
    source = LiveSource(MINUTES, 1)
    for data in (HEADER + b"ann,1,1\n" + before, b"x" * 600_000, b"x" * 600_000, b"x" * 600_000):
        source.receive(data, at(0))
    assert len(source._partial) < 1 << 20
    assert str(source.bad_rows) == "standard input:3: a line has more than 1,048,576 bytes"
    assert source.receive(b"x\nbob,1,1\nbob,1,x\n", at(0)) == [Change(1, "bob", 1)]
    assert [row.line for row in source.bad_rows.first] == [3, 5]


@pytest.fixture(name="job")
def job_() -> DeployedJob:
    job = new_job(
        "live",
        "count_min",
        {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b", "c"], "items": 2},
        epochs={"count": 5, "start": "2024-01-01", "length": "PT1M"},
        shuffle={"minimum": 10},
    )
    return deploy_job(job, deployed_at=0)


def source_of(job: DeployedJob, first_epoch: int = 1) -> LiveSource:
    calendar = job.epochs.calendar
    assert calendar is not None
    source = LiveSource(calendar, first_epoch, last_epoch=5, domain=job.domain)
    source.receive(b"user,epoch,value\n", at(first_epoch - 1))
    return source


def test_row_adds_an_item_only_to_the_set_of_its_epoch(job: DeployedJob) -> None:
    source = source_of(job)
    assert source.receive(b"ann,1,a\nann,1,b\nann,1,a\nbob,1,\n", at(0.5)) == [
        Held(1, "ann", (1,)),
        Held(1, "ann", (2,)),
        Held(1, "ann", ()),
        Held(1, "bob", ()),
    ]
    assert source.receive(b"ann,2,c\n", at(0.6)) == []
    assert source.tick(at(1.5)) == [CloseEpoch(1), Held(2, "ann", (3,))]
    assert source.receive(b"ann,1,b\n", at(1.6)) == [], "too late"
    assert source.receive(b"ann,2,a\nann,2,b\n", at(1.7)) == [
        Held(2, "ann", (1,)),
        Held(2, "ann", ()),
    ]
    assert source.warnings() == (
        "standard input: 1 row for closed epochs: too late to change them",
        "standard input: 1 row from users with more than 2 items: not used",
    )


class Recorded(Producer):
    sets: dict[int, dict[str, list[int]]]

    def close(self, epoch: int) -> None:
        held = (sorted(row[row > 0].tolist()) for row in self._values[self._present])
        users = np.array(self.users)[self._present].tolist()
        self.sets[epoch] = dict(zip(users, held, strict=True))
        super().close(epoch)


def test_item_sets_at_an_epoch_survive_a_restart(job: DeployedJob, tmp_path: Path) -> None:
    sets: dict[int, dict[str, list[int]]] = {}
    script = [
        (0.1, b"ann,1,a\nbob,1,b\nbob,1,c\n"),
        (1.1, b"ann,2,c\nann,2,c\n"),
        (1.2, b""),
        (1.3, b"ann,2,b\nbob,2,\n"),
        (2.1, b""),
        (3.1, b"eve,4,a\n"),
        (4.1, b""),
    ]
    for minutes, data in script:
        # Every piece of input is read in a run of its own.
        producer = Recorded(job, tmp_path, name="gateway", transport=MemoryDriver(MemoryLog()))
        producer.sets = sets
        with producer:
            live = LiveProducer(producer, tmp_path, user_list=["ann", "bob", "eve"])
            source = source_of(job, producer.closed_epoch + 1)
            live.take(source.receive(data, at(minutes)))
            live.keep()
    assert sets == {
        1: {"ann": [1], "bob": [2, 3], "eve": []},
        2: {"ann": [2, 3], "bob": [], "eve": []},
        3: {"ann": [], "bob": [], "eve": []},
        4: {"ann": [], "bob": [], "eve": [1]},
    }
