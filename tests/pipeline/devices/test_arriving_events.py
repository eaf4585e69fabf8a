"""Test events that arrive while a job runs: the values of a file, and each event counts once."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpstream.pipeline.devices.event_log import load_event_log
from dpstream.pipeline.devices.live import Happened, LiveSource
from dpstream.pipeline.devices.produce_topic import produce_to, read_on
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.devices.topic_input import TopicInput
from dpstream.pipeline.devices.users import Roster
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryLog
from tests.pipeline.devices.test_topic_input import (
    DAY,
    EPOCHS,
    START,
    Event,
    Events,
    Fuse,
    Killed,
    Noted,
    batches,
    fuse,
    opened,
)

__all__ = ["fuse"]

USERS = ("ann", "bob", "cid", "dan")
ROSTER = Roster(USERS, {"os": ("ios", "web", "tv", "")})
MEASURES: dict[str, Any] = {
    "active": {"type": "active", "within": 2, "event": ["open", "buy"]},
    "spent": {"type": "sum", "number": "amount", "within": 2, "mean": {"low": 0, "high": 9}},
    "steps": {"type": "steps", "steps": ["open", "buy"], "within": 3},
    "life": {"type": "lifecycle"},
    "days": {"type": "days", "within": 2, "at_least": 2},
    "tab": {"type": "last", "label": "tab", "values": ["a", "b"], "within": 2},
}
GROUPED: dict[str, Any] = {
    "attributes": {"os": {"values": ["ios", "web"], "public": True}},
    "by": ["os"],
}


def job_of(measures: dict[str, Any] = MEASURES, **keys: Any) -> DeployedJob:
    epochs = {
        "count": EPOCHS,
        "start": START.isoformat(),
        "length": "P1D",
        "timezone": "Asia/Tokyo",
    }
    given = {"name": "app", "epochs": epochs, "parameters": {"epsilon": 4}, "measures": measures}
    return deploy_job(make_job(given | keys), deployed_at=0, deployment=bytes(16))


PANELS = job_of(**GROUPED)
CELLS = job_of(
    {"used": {"type": "active", "event": ["open"]}},
    attributes={"plan": {"column": "tab", "values": ["b"]}, "cohort": {"first_seen": "P2D"}},
    by=[["plan", "cohort"]],
    trust="shuffle",
    parameters={"epsilon": 1, "delta": 1e-6},
    shuffle={"minimum": 1000},
)


def random_rows(seed: int, count: int = 30) -> list[Event]:
    random = Random(seed)
    return [
        {
            "user": random.choice([*USERS, "eve"]),
            "time": (START + random.randrange(-60, 24 * EPOCHS) / 24 * DAY).isoformat(),
            "event": random.choice(["open", "buy", "x"]),
            "amount": random.choice([0.5, 2, 7, None]),
            "tab": random.choice(["a", "b", "c", ""]),
        }
        for _ in range(count)
    ]


def from_file(folder: Path, job: DeployedJob, rows: list[Event]) -> Noted:
    folder.mkdir(exist_ok=True)
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = load_event_log(job, path, last_epoch=EPOCHS, users=ROSTER)
    return {
        epoch: dict(zip(log.users, log.values_at(epoch).tolist(), strict=True))
        for epoch in range(1, EPOCHS + 1)
    }


def from_topic(
    folder: Path | None,
    job: DeployedJob,
    events: Events,
    log: MemoryLog,
    fuse: Fuse,
    to: int = EPOCHS,
) -> Noted:
    noted: Noted = {}
    with opened(folder, log, noted, fuse, job=job) as producer:
        reader = RowReader(job.row_domain, job.epochs.calendar, job.input_format)
        source = TopicInput(producer, reader, "events", user_list=ROSTER)
        produce_to(source, producer, events, to)
    return noted


def test_clamped_numbers_are_counted_for_the_operator(tmp_path: Path) -> None:
    """The window of two epochs has 20 in both of them; 9 is the highest number."""
    rows: list[Event] = [
        {"user": user, "time": START.isoformat(), "event": "buy", "amount": amount, "tab": ""}
        for user, amount in (("ann", 20), ("bob", 8.9))
    ]
    words = "measure spent: 2 numbers of 8 (25 %) are 9 or more and count as 9"
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = load_event_log(PANELS, path, last_epoch=2, users=ROSTER)
    assert any(words in each for each in log.warnings)
    with opened(None, MemoryLog(), {}, Fuse(), job=PANELS) as producer:
        reader = RowReader(PANELS.row_domain, PANELS.epochs.calendar, PANELS.input_format)
        source = TopicInput(producer, reader, "events", user_list=ROSTER)
        produce_to(source, producer, Events.of(rows, 1), 2)
        assert any(words in each for each in source.warnings())
    shifted = MEASURES | {"spent": MEASURES["spent"] | {"mean": {"low": 5, "high": 30}}}
    low = load_event_log(job_of(shifted, **GROUPED), path, last_epoch=2, users=ROSTER).warnings
    assert any("4 numbers of 8 (50 %) are 5 or less and count as 5" in each for each in low)


@pytest.mark.parametrize("job", [PANELS, CELLS], ids=["panels", "cells"])
@pytest.mark.parametrize("seed", range(6))
def test_topic_yields_the_values_of_a_file(tmp_path: Path, job: DeployedJob, seed: int) -> None:
    rows = random_rows(seed)
    events, log = Events.of(rows, 1), MemoryLog()
    noted: Noted = {}
    for to in (1, 3, EPOCHS):
        noted |= from_topic(tmp_path / "state", job, events, log, Fuse(), to)
    assert noted == from_file(tmp_path, job, rows)


def test_killed_reader_of_events_counts_each_once(tmp_path: Path, fuse: Fuse) -> None:
    rows = random_rows(1)
    undisturbed = MemoryLog()
    events = Events.of(rows)
    events.fuse = fuse
    from_topic(tmp_path / "whole", PANELS, events, undisturbed, fuse)
    points = fuse.met
    assert points > 25
    for at in range(0, points, 2):
        events, log = Events.of(rows), MemoryLog()
        events.fuse = fuse
        for left in (at, at // 2, None):
            fuse.left = left
            try:
                from_topic(tmp_path / str(at), PANELS, events, log, fuse)
            except Killed:
                continue
        fuse.left = None
        assert batches(log) == batches(undisturbed), at


def live_lines(rows: list[Event]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["user", "time", "event", "amount", "tab"], lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue().encode()


@pytest.mark.parametrize("restarts", [False, True])
def test_live_rows_yield_the_values_of_a_file_and_late_ones_count_later(
    tmp_path: Path, restarts: bool
) -> None:
    rows = sorted(random_rows(3), key=lambda row: row["time"])
    late = {"user": "dan", "time": START.isoformat(), "event": "open", "amount": 3, "tab": "a"}
    noted: Noted = {}
    log = MemoryLog()
    for epoch in range(1, EPOCHS + 1):
        moment = START + (epoch - 0.01) * DAY
        with opened(tmp_path / "state", log, noted, job=PANELS) as producer:
            if producer.closed_epoch >= epoch:
                continue
            calendar = PANELS.epochs.calendar
            assert calendar is not None
            source = LiveSource(
                calendar, epoch, last_epoch=EPOCHS, domain=PANELS.row_domain, name="rows"
            )
            live = LiveProducer(producer, tmp_path, user_list=ROSTER)
            live.take(source.receive(b"user,time,event,amount,tab\n", moment))
            today = [
                row for row in rows if row_epoch(row) == epoch or (epoch == 1 > row_epoch(row))
            ]
            half = len(today) // 2
            live.take(source.receive(live_lines(today[:half]), moment))
            if restarts:
                live.keep()
                live = LiveProducer(producer, tmp_path, user_list=ROSTER)
            live.take(source.receive(live_lines(today[half:]), moment))
            if epoch == 2:
                live.take(source.receive(live_lines([late]), moment))
            live.take(source.tick(moment + DAY / 50))
    expected = from_file(tmp_path, PANELS, [*rows, late])
    before = from_file(tmp_path, PANELS, rows)
    assert noted == {1: before[1]} | {epoch: expected[epoch] for epoch in range(2, EPOCHS + 1)}
    assert before[2] != expected[2]


def row_epoch(row: Event) -> int:
    return (datetime.fromisoformat(row["time"]) - START) // timedelta(days=1) + 1


def test_groups_of_live_users_come_from_the_user_list(tmp_path: Path) -> None:
    with opened(None, MemoryLog(), {}, job=PANELS) as producer:
        with pytest.raises(InputError, match="public attributes os, which do not come from events"):
            LiveProducer(producer, tmp_path)
        LiveProducer(producer, tmp_path, user_list=ROSTER)
        assert set(producer.users) == set(USERS)


def test_epoch_that_fails_can_be_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(2)
    noted: Noted = {}
    with opened(None, MemoryLog(), noted, job=PANELS) as producer:
        reader = RowReader(PANELS.row_domain, PANELS.epochs.calendar, PANELS.input_format)
        source = TopicInput(producer, reader, "events", user_list=ROSTER)
        read_on(source, Events.of(rows, 1), {0: len(rows)})
        for epoch in range(1, EPOCHS + 1):
            with monkeypatch.context() as patched:
                patched.setattr(producer, "close_together", lambda epoch, beside: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    source.close(epoch)
            source.close(epoch)
    assert noted == from_file(tmp_path, PANELS, rows)


def test_timestamps_of_records_place_events_without_times(tmp_path: Path) -> None:
    rows = random_rows(4)
    stamped = [{**row, "stamp": datetime.fromisoformat(row["time"])} for row in rows]
    for row in stamped:
        del row["time"]
    noted = from_topic(None, PANELS, Events.of(stamped, 1), MemoryLog(), Fuse())
    assert noted == from_file(tmp_path, PANELS, rows)


def test_live_events_without_times_happen_on_arrival(tmp_path: Path) -> None:
    calendar, noted = PANELS.epochs.calendar, dict[int, dict[str, Any]]()
    assert calendar is not None
    with opened(None, MemoryLog(), noted, job=PANELS) as producer:
        source = LiveSource(calendar, 1, last_epoch=EPOCHS, domain=PANELS.row_domain)
        live = LiveProducer(producer, None, user_list=ROSTER)
        for day in range(EPOCHS):
            row = json.dumps({"user": "bob", "event": "open", "tab": "b"}).encode()
            live.take(source.receive(row + b"\n", START + (day + 0.5) * DAY))
        live.take(source.tick(START + EPOCHS * DAY))
    answers = dict(zip(MEASURES, noted[EPOCHS]["bob"], strict=True))
    assert answers == {"active": 1, "spent": 0, "steps": 1, "life": 2, "days": 1, "tab": 2}


def test_events_with_epochs_are_rejected_if_days_count(tmp_path: Path) -> None:
    message = "rows have epochs, but days counts calendar days or periods"
    calendar = PANELS.epochs.calendar
    assert calendar is not None
    source = LiveSource(calendar, 1, last_epoch=EPOCHS, domain=PANELS.row_domain)
    with pytest.raises(InputError, match=message):
        source.receive(b"user,epoch,event,amount,tab\nann,1,open,,\n", START)
    events = Events.of([{"user": "ann", "epoch": 1}], 1)
    with pytest.raises(InputError, match=message):
        from_topic(None, PANELS, events, MemoryLog(), Fuse())


@pytest.mark.parametrize("source", ["live", "topic"])
def test_users_must_be_listed_before_events(source: str) -> None:
    job = job_of({"used": {"type": "active"}})
    reader = RowReader(job.row_domain, job.epochs.calendar, job.input_format)

    def start(producer: Producer) -> None:
        if source == "live":
            LiveProducer(producer, None).take([Happened(1, "ann", 0, [])])
        else:
            TopicInput(producer, reader, "events").close(1)

    message = r"List all users .*--users FILE$"
    with opened(None, MemoryLog(), {}, job=job) as producer:
        with pytest.raises(InputError, match=message):
            start(producer)
        assert not producer.users
