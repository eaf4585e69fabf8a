"""Event logs: answers of many users equal those of each history, in every format of rows."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.devices.bad_rows import BadRowsError, InputError
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.event_log import load_event_log
from dpstream.pipeline.devices.measured_events import Events
from dpstream.pipeline.devices.users import Roster
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.values.event_rows import EventDomain
from dpstream.randomizers.event_histories import DAY, EventHistory
from dpstream.randomizers.measures import MeanRange, Measure
from tests.support.random_events import (
    LABELS,
    MEASURES,
    NAMES,
    RandomEvent,
    brute_answer,
    note,
    random_events,
)

WEEKS = {"count": 8, "start": "2026-01-05", "length": "P1W"}


def measured(measures: dict[str, Any], **keys: Any) -> Job:
    given = {"name": "app", "epochs": WEEKS, "parameters": {"epsilon": 4}, "measures": measures}
    return make_job(given | keys)


def load(tmp_path: Path, job: Job, text: str, **options: Any) -> ChangeLog:
    path = tmp_path / "events"
    path.write_text(text)
    return load_event_log(job, path, last_epoch=job.last_epoch, **options)


def events_of(people: list[list[RandomEvent]]) -> Events:
    domain = EventDomain(NAMES[:3], "nm", {"l": LABELS[:3]})
    rows = [(user, event) for user, events in enumerate(people) for event in events]
    moments = np.array([event.moment for _, event in rows], np.int64)
    texts = [
        [event.event for _, event in rows],
        *([str(event.numbers.get(name, "")) for _, event in rows] for name in "nm"),
        [event.labels["l"] for _, event in rows],
    ]
    fields, problems = domain.parse_fields(texts, len(rows))
    assert not problems
    return Events.of(
        domain,
        len(people),
        epochs=np.array([event.epoch for _, event in rows], np.int32),
        users=np.array([user for user, _ in rows], np.int32),
        moments=moments,
        days=moments // DAY,
        fields=fields,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from(range(len(MEASURES))))
def test_answers_of_many_users_are_those_of_each(seed: int, which: int) -> None:
    random = Random(seed)
    measure = MEASURES[which]
    people = [random_events(random, last=12) for _ in range(random.randrange(1, 40))]
    for epoch, answers in enumerate(events_of(people).answers(measure, 12), 1):
        assert answers.tolist() == [brute_answer(measure, events, epoch) for events in people]


@pytest.mark.parametrize("measure", MEASURES, ids=lambda each: f"{each.type}-{each.within}")
def test_many_users_and_one_history_agree(measure: Measure) -> None:
    random = Random(7)
    people = [random_events(random, last=10, most=200) for _ in range(60)]
    histories = [EventHistory([measure]) for _ in people]
    for history, events in zip(histories, people, strict=True):
        for event in events:
            note(history, event)
    for epoch, answers in enumerate(events_of(people).answers(measure, 10), 1):
        for history in histories:
            history.close(epoch)
        assert answers.tolist() == [history.answer(measure, epoch) for history in histories]


def test_huge_numbers_are_summed_exactly() -> None:
    total = Measure("sum", number="n", scale=1, mean=MeanRange(0, 4))
    numbers = [2.0**60, 3, *([2.0**60] * 2000), *([-(2.0**60)] * 2001)]
    people = [[RandomEvent(0, "", {"n": number}, {"l": ""}) for number in numbers]]
    assert [answers.tolist() for answers in events_of(people).answers(total, 1)] == [[3 << 30]]


ROWS = """user,time,event,os,minutes
ann,2026-01-04T23:30:00Z,open,ios,
bob,2026-01-06,buy,web,2.5
ann,2026-01-20,buy,tv,7
ann,2026-01-20,search,,0.5
bob,2026-01-13T00:30:00+01:00,open,ios,1
"""
SESSION = {"minutes": {"type": "sum", "number": "minutes", "buckets": [0, 1, 5]}}


def values(log: ChangeLog) -> dict[str, list[int]]:
    found = np.array([each.copy() for each in log.values_by_epoch()])
    return {user: found[:, index].tolist() for index, user in enumerate(log.users)}


def test_rows_become_answers_with_history_before_the_first_epoch(tmp_path: Path) -> None:
    log = load(tmp_path, measured({"wau": {"type": "active", "within": 2}}), ROWS)
    assert values(log) == {"ann": [1, 0, 1, 1, 0, 0, 0, 0], "bob": [1, 1, 1, 0, 0, 0, 0, 0]}
    assert log.ground_truth().tolist() == [2, 1, 2, 1, 0, 0, 0, 0]
    assert any("1 row before epoch 1: used as history" in each for each in log.warnings)
    assert not any("complete" in each for each in log.warnings)
    berlin = measured({"wau": {"type": "active"}}, epochs=WEEKS | {"timezone": "Europe/Berlin"})
    assert values(load(tmp_path, berlin, ROWS))["ann"] == [1, 0, 1, 0, 0, 0, 0, 0]


def test_windows_that_may_be_incomplete_are_mentioned(tmp_path: Path) -> None:
    job = measured({"mau": {"type": "active", "within": 4}})
    (warning,) = load(tmp_path, job, "user,epoch\nann,1\n").warnings
    assert "windows of 4 epochs are complete from epoch 4 on" in warning
    complete = measured({"mau": {"type": "active", "within": 4}}, history="complete")
    assert load(tmp_path, complete, "user,epoch\nann,1\n").warnings == ()


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_formats_and_renamed_columns_give_the_same_log(tmp_path: Path, kind: str) -> None:
    plan = {"plan": {"column": "os", "values": ["ios", "web"]}}
    job = measured(
        {"buys": {"type": "count", "event": "buy", "at_least": 1}},
        attributes=plan,
        by=["plan"],
        trust="shuffle",
        parameters={"epsilon": 1, "delta": 1e-6},
        shuffle={"minimum": 1000},
        input={"columns": {"user": "who", "time": "at", "event": "what"}},
    )
    header, *rows = [line.split(",") for line in ROWS.splitlines()]
    names = [{"user": "who", "time": "at", "event": "what"}.get(name, name) for name in header]
    path = tmp_path / "events"
    records = [dict(zip(names, row, strict=True)) for row in rows]
    if kind == "csv":
        path.write_text("\n".join([",".join(names), *(",".join(row) for row in rows), ""]))
    elif kind == "json":
        # Keys without a value can be left out.
        kept = [{key: value for key, value in each.items() if value} for each in records]
        path.write_text("".join(json.dumps(each) + "\n" for each in kept))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(records), path)
    log = load_event_log(job, path, last_epoch=8)
    labels = job.questions[0].labels
    named = {user: [labels[item - 1] for item in found] for user, found in values(log).items()}
    assert named["ann"][:4] == [
        "buys=no,plan=ios",
        "buys=no,plan=ios",
        "buys=yes,plan=other",
        "buys=no,plan=other",
    ]
    assert named["bob"][:3] == ["buys=yes,plan=web", "buys=no,plan=ios", "buys=no,plan=ios"]


def test_label_that_only_a_measure_declares_is_another_value_of_the_attribute(
    tmp_path: Path,
) -> None:
    job = measured(
        {"os": {"type": "last", "label": "os", "values": ["web", "ios"]}},
        attributes={"plan": {"column": "os", "values": ["ios"]}},
        by=["plan"],
    )
    log = load(tmp_path, job, "user,epoch,os\nann,1,web\nann,2,ios\nann,3,tv\n")
    own, cells = [question.labels for question in job.questions]
    answers = [now[0].tolist() for now in log.values_by_epoch()]
    assert [own[item - 1] for item, _ in answers[:3]] == ["web", "ios", "other"]
    assert [cells[item - 1] for _, item in answers[:3]] == [
        "os=web,plan=other",
        "os=ios,plan=ios",
        "os=other,plan=other",
    ]


def test_public_groups_come_from_the_user_list_not_from_events(tmp_path: Path) -> None:
    job = measured(
        {"wau": {"type": "active"}},
        attributes={"os": {"values": ["ios", "web"], "public": True}},
        by=["os"],
    )
    roster = Roster(("ann", "bob", "cid"), {"os": ("ios", "web", "tv")})
    log = load(tmp_path, job, ROWS, users=roster)
    assert log.groups is not None
    assert [job.groups[group]["os"] for group in log.groups.tolist()] == ["ios", "web", "other"]


def test_cohorts_are_periods_of_the_first_event(tmp_path: Path) -> None:
    job = measured(
        {"used": {"type": "active", "event": ["open"]}},
        attributes={"cohort": {"first_seen": "P1M", "event": ["open"]}},
        by=["cohort"],
        trust="shuffle",
        epochs={"count": 3, "start": "2026-01-01", "length": "P1M"},
        parameters={"epsilon": 1, "delta": 1e-6},
        shuffle={"minimum": 1000},
    )
    rows = "a,2025-11-03,open\nb,2026-02-10,open\nb,2026-03-10,open\nc,2026-01-01,x\n"
    log = load(tmp_path, job, f"user,time,event\n{rows}")
    labels = job.questions[0].labels
    named = {user: [labels[item - 1] for item in found] for user, found in values(log).items()}
    assert named["a"] == ["used=no,cohort=earlier"] * 3
    assert named["b"] == ["used=no,cohort=never", *["used=yes,cohort=2026-02"] * 2]
    assert named["c"] == ["used=no,cohort=never"] * 3


def test_days_are_those_of_the_time_zone(tmp_path: Path) -> None:
    days = {"days": {"type": "days", "at_least": 2}}
    rows = "user,time\nann,2026-01-06T23:30:00Z\nann,2026-01-07T00:30:00Z\n"
    assert values(load(tmp_path, measured(days), rows))["ann"][0] == 1
    berlin = measured(days, epochs=WEEKS | {"timezone": "Europe/Berlin"})
    assert values(load(tmp_path, berlin, rows))["ann"][0] == 0
    with pytest.raises(InputError, match="days counts calendar days or periods"):
        load(tmp_path, berlin, "user,epoch\nann,1\n")


def test_decimal_commas_and_large_buckets(tmp_path: Path) -> None:
    form = {"decimal": ",", "separator": ";"}
    job = measured(SESSION, input=form)
    log = load(tmp_path, job, "user;epoch;minutes\na;1;4,5\na;1;0,5\na;2;0,9995\n")
    assert values(log)["a"][:3] == [3, 2, 1]


@pytest.mark.parametrize(
    ("measures", "text", "message"),
    [
        (SESSION, "user,epoch\na,1\n", "expected the columns user, minutes and epoch or time"),
        (SESSION, "user,epoch\na,1\n", "The job file names the columns of its measures"),
        ({"n": {"type": "active"}}, "epoch,id\n1,a\n", "--column user=id"),
        (
            {"n": {"type": "active", "event": "x"}},
            "user,epoch,name\na,1,x\n",
            "--column event=name",
        ),
        (SESSION, "user,epoch,minutes\na,1,ten\n", "minutes 'ten' is not a number"),
        (SESSION, "user,epoch,minutes\na,1,nan\n", "minutes 'nan' is not a number"),
        ({"n": {"type": "active"}}, "user,epoch\n,1\n", "the user is empty"),
        ({"n": {"type": "active"}}, "", "the first line must contain the columns user"),
        (
            {"n": {"type": "active"}},
            '{"epoch": 1}\n',
            "expected the columns user and epoch or time",
        ),
    ],
)
def test_unreadable_rows_are_rejected(
    tmp_path: Path, measures: dict[str, Any], text: str, message: str
) -> None:
    with pytest.raises((InputError, BadRowsError)) as error:
        load(tmp_path, measured(measures), text)
    assert message in str(error.value)


def test_bad_rows_are_skipped_and_counted_on_request(tmp_path: Path) -> None:
    text = "user,epoch,minutes\na,1,ten\na,1,7\nb,2,\nc,1,1\n"
    log = load(tmp_path, measured(SESSION), text, skip_bad_rows=True, users={"a", "b", "d"})
    assert (log.bad_rows.total, log.unknown_users, log.users) == (1, 1, ("a", "b", "d"))
    assert [answers[0] for answers in values(log).values()] == [3, 1, 1]


@pytest.mark.parametrize("key", ["duplicates", "clamp", "values", "true"])
def test_input_keys_about_values_are_refused(key: str) -> None:
    given = {"duplicates": "last", "clamp": True, "values": {"a": "b"}, "true": ["ja"]}
    with pytest.raises(JobError, match=f"{key} does not apply to events. Remove the key"):
        measured(SESSION, input={key: given[key]})
