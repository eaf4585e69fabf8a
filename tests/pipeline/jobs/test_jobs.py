"""Test job files: four keys suffice, and errors name the line and the valid values."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job, load_job, make_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.marked_yaml import YamlError, read_marked_yaml
from dpstream.pipeline.protocols.protocol import Law, Shuffling
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.values.durations import parse_duration
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.topics.names import FURTHER_REPORTS, HOPS, SUMS, Role
from tests.support.cells import CELLS

SHORT = """\
name: students
protocol: future_rand
parameters: {epsilon: 4, max_changes: 4}
epochs: {count: 170}
"""

FULL = """\
# Every key there is.
name: students-2
protocol: future_rand
parameters:
  epsilon: 1e-1
  max_changes: 16
  calibration: published
epochs:
  count: 12
  start: 2013-10-01
  length: P1M
  renew: false
shuffle:
  order: random
  minimum: 1
  producers: 3
  grace: 1h
topics:
  partitions: 8
  replication: 3
  retention: 2 w
"""


def problems(text: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(text, source="job.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems), "one line each"
    return lines


def only_problem(text: str) -> str:
    (line,) = problems(text)
    return line


def test_job_file_requires_four_keys() -> None:
    job = parse_job(SHORT)
    assert job.name == "students"
    assert job.parameters == FutureRandParameters(epsilon=4, max_changes=4, calibration="optimal")
    assert (job.last_epoch, job.epochs.start, job.epochs.length) == (170, None, None)
    assert (job.shuffle.order, job.shuffle.minimum) == ("sorted", 100)
    assert (job.shuffle.producers, job.shuffle.grace) == (1, 60)
    assert (job.topics.partitions, job.topics.replication, job.topics.retention_ms) == (
        4,
        None,
        7 * 24 * 3600 * 1000,
    )


def test_job_file_accepts_every_key() -> None:
    job = parse_job(FULL)
    assert job.parameters == FutureRandParameters(0.1, 16, "published")
    assert job.epochs.start == datetime(2013, 10, 1, tzinfo=UTC)
    assert job.epochs.length == parse_duration("P1M")
    assert (job.shuffle.order, job.shuffle.minimum) == ("random", 1)
    assert (job.shuffle.producers, job.shuffle.grace) == (3, 3600)
    assert (job.topics.partitions, job.topics.replication) == (8, 3)
    assert job.topics.retention_ms == 14 * 24 * 3600 * 1000


@pytest.mark.parametrize("text", [SHORT, FULL])
def test_job_round_trips_through_json(text: str) -> None:
    job = parse_job(text)
    assert make_job(job.to_json()) == job


def test_epochs_are_assigned_to_partitions_round_robin() -> None:
    job = parse_job(SHORT)
    assert [job.topics.partition_of(epoch) for epoch in range(1, 6)] == [1, 2, 3, 0, 1]
    assert job.topic(Role.REPORTS) == "students.reports"
    assert {role: topic.partitions for role, topic in job.topic_settings().items()} == {
        role: 4 if role in (Role.REPORTS, Role.SHUFFLED) else 1
        for role in Role
        if role not in (Role.MODEL, Role.DEVICES, *FURTHER_REPORTS, *HOPS, *SUMS)
    }


def test_job_file_problems_are_listed_in_file_order() -> None:
    text = """\
name: Students
protocol: future_rand
parameters:
  epsilom: 4
  max_changes: four
epochs:
  count: 0
shufle: {}
topics:
  partitions: 4.5
"""
    assert problems(text) == [
        'job.yaml:1: name: "Students" is not allowed; expected 1 to 236 lower-case letters, '
        "digits, - and _, starting with a letter or digit; in quotes if all are digits",
        "job.yaml:4: parameters.epsilom: unknown key; did you mean epsilon? "
        "allowed: epsilon, max_changes, calibration, estimator",
        'job.yaml:5: parameters.max_changes: "four" is not allowed; expected a valid integer',
        "job.yaml:7: epochs.count: 0 is not allowed; expected an integer from 1 to 1048576",
        "job.yaml:8: shufle: unknown key; did you mean shuffle? allowed: title, description, unit, "
        "labels, name, protocol, parameters, epochs, shuffle, topics, population, budget, crowds, "
        "central, sealed, devices, input, roll_up",
        "job.yaml:10: topics.partitions: 4.5 is not allowed; expected an integer from 1 to 1024",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "parameters: {epsilon: 0, max_changes: 4}",
            "parameters.epsilon: is 0.0; expected 1e-06 to 64",
        ),
        (
            "parameters: {epsilon: 1, max_changes: true}",
            "true is not allowed; expected a valid integer",
        ),
        (
            "parameters: {epsilon: '1,5', max_changes: 1}",
            '"1,5" is not allowed: use a decimal point: 1.5',
        ),
        (
            "parameters: {epsilon: 1,5, max_changes: 1}",
            "parameters.epsilon: 1,5 in braces is read as two values. Use a decimal point",
        ),
        ("epochs: {count: '10,000'}", '"10,000" is not allowed: write it without commas: 10000'),
        (
            "parameters: {epsilon: 1e999, max_changes: 1}",
            "Infinity is not allowed; expected a finite",
        ),
        (
            "parameters: {epsilon: 1, max_changes: 1, calibration: best}",
            "parameters.calibration: \"best\" is not allowed; expected 'optimal' or 'published'",
        ),
        ("parameters: {max_changes: 4}", "parameters.epsilon: is required"),
        ("name: a.b", "lower-case letters, digits, - and _"),
        (
            "protocol: future_rnd",
            'protocol: "future_rnd" is not allowed; expected one of value_stream',
        ),
        (
            "epochs: {count: 8, start: 2013-10-01}",
            ("epochs.length: is missing. Set both 'start' and 'length'"),
        ),
        ("epochs: {count: 8, start: 2013-10-01, length: week}", 'epochs.length: "week" is not'),
        ("shuffle: {minimum: 0}", "shuffle.minimum: 0 is not allowed; expected the minimum number"),
        ("shuffle: {grace: 60}", "shuffle.grace: 60 is not allowed; expected a duration"),
        ("shuffle: {grace: P1M}", "without months or years"),
        ("topics:", "topics: has no value. Set one, or remove the key"),
        (
            "input: {seperator: ';'}",
            "seperator: unknown key; did you mean separator? allowed: form",
        ),
        (
            "input: {timezone: Berlin}",
            'input.timezone: "Berlin" is not allowed; expected the time zone',
        ),
        ("input: {time_format: '%Q %Y'}", "input.time_format: "),
        ("input: {true: [ja], false: [JA]}", "input.true: contains 'ja', which 'false' also"),
        ("input: {decimal: ','}", "input: decimal requires numbers, but this job is about one"),
        (
            "input: {clamp: true}",
            "input: clamp requires numbers with a range, but this job is about one",
        ),
    ],
)
def test_invalid_value_is_reported_with_allowed_values(line: str, message: str) -> None:
    key = line.partition(":")[0]
    others = [kept for kept in SHORT.splitlines() if not kept.startswith(f"{key}:")]
    said = only_problem("\n".join([*others, line]))
    assert said.startswith(f"job.yaml:{len(others) + 1}: {key}")
    assert message in said


def test_missing_key_is_reported_at_its_section() -> None:
    said = only_problem(
        "name: a\nprotocol: future_rand\nepochs: {count: 1}\nparameters:\n  epsilon: 1"
    )
    assert said == "job.yaml:4: parameters.max_changes: is required"
    assert problems("")[1:] == [
        f"job.yaml:1: protocol: is required; expected one of {', '.join(PROTOCOLS)}",
        "job.yaml:1: parameters: is required",
        "job.yaml:1: epochs.count: is required; expected an integer from 1 to 1048576",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "job.yaml:2: name: is a duplicate key; line 1 has it already"),
        (
            "name: a\n\nepochs: {count: 1,\n count: 2}",
            "4: epochs.count: is a duplicate key; line",
        ),
        ("name: a\nepochs: {count: 1\n", "job.yaml:3: not YAML: "),
        ("name: a: b\n", "job.yaml:1: not YAML: mapping values are not allowed here"),
        ("name: a\n---\nname: b\n", "job.yaml:2: not YAML: "),
        ("name: \x00\n", "job.yaml:1: not YAML: "),
        ("name: " + "[" * 500, "job.yaml:1: nested too deeply"),
        ("- name\n", "job.yaml:1: expected keys and values"),
        ("name: &a b\nprotocol: *a\n", "protocol: aliases are not supported. Write the value out"),
        ("name: !!python/name:os.system\n", "1: name: the tag tag:yaml.org,2002:python/name:os."),
        ("? [a, b]\n: 1\n", "job.yaml:1: has a key that is not text"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(text: str, message: str) -> None:
    assert message in only_problem(text)


def test_plain_yaml_scalars_are_not_read_as_dates_or_octal_numbers() -> None:
    text = "a: no\nb: 1:30\nc: 1e-6\nd: 010\ne: 2013-10-01\nf: '1'\ng: true\nh: -.5\n"
    assert read_marked_yaml(text).values == {
        "a": "no",
        "b": "1:30",
        "c": 1e-6,
        "d": "010",
        "e": "2013-10-01",
        "f": "1",
        "g": True,
        "h": -0.5,
    }


@given(st.text(max_size=60))
def test_arbitrary_text_raises_a_job_error(text: str) -> None:
    with pytest.raises(JobError):
        parse_job(text)


@given(st.text("ab:-,[]{}&*!#'\"|>?\n\t ", max_size=60))
def test_arbitrary_yaml_is_parsed_or_raises_a_yaml_error(text: str) -> None:
    try:
        problems = [(1, "")] if isinstance(read_marked_yaml(text).values, dict) else []
    except YamlError as error:
        problems = list(error.problems)
    assert problems
    assert all(1 <= line <= text.count("\n") + 1 for line, _ in problems)


def test_error_mentions_the_unreadable_job_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"none\.yaml: cannot read the job file: No such file"):
        load_job(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobError, match=r"binary\.yaml: not a text file in UTF-8"):
        load_job(tmp_path / "binary.yaml")
    (tmp_path / "job.yaml").write_text(SHORT)
    assert load_job(tmp_path / "job.yaml") == parse_job(SHORT)


def test_shuffle_model_protocol_requires_a_minimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = replace(CELLS, name="sized", shuffling=Shuffling(lambda law, honest: math.inf))
    monkeypatch.setitem(PROTOCOLS, "sized", sized)
    text = "name: a\nprotocol: sized\nparameters: {cells: 4}\nepochs: {count: 4}\n"
    for line, section in ((1, ""), (5, "shuffle: {grace: 1h}")):
        assert only_problem(text + section) == (
            f"job.yaml:{line}: shuffle.minimum: is required; expected the minimum number of "
            "devices to release a window, an integer of at least 1; the noise is calibrated to it"
        )
    assert parse_job(text + "shuffle: {minimum: 7}").shuffle.minimum == 7


def test_failed_calibration_raises_a_job_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reject(parameters: object, last_epoch: int, minimum: int) -> Law:
        raise ValueError(f"nothing for {last_epoch} epochs")

    monkeypatch.setitem(PROTOCOLS, "cells", replace(CELLS, calibrate=reject))
    job = parse_job("name: a\nprotocol: cells\nparameters: {cells: 4}\nepochs: {count: 4}\n")
    with pytest.raises(JobError, match=r"^parameters: nothing for 4 epochs$"):
        job.calibrate()


def changed(**values: object) -> Job:
    return make_job({**parse_job(SHORT).to_json(), **values})


def test_differences_between_jobs_are_listed_by_key() -> None:
    job = parse_job(SHORT)
    assert describe_difference(job, job) == []
    assert describe_difference(job, changed(parameters={"epsilon": 2, "max_changes": 4})) == [
        "parameters.epsilon: 4 -> 2"
    ]
    epochs = {"count": 12, "start": "2013-10-01", "length": "1w"}
    assert describe_difference(job, changed(epochs=epochs, shuffle={"grace": "90 s"})) == [
        "epochs.count: 170 -> 12",
        'epochs.start: left out -> "2013-10-01T00:00:00Z"',
        "epochs.length: left out -> 7 d",
        "shuffle.grace: 1 min -> 90 s",
    ]


PLAIN = """
name: students
protocol: future_rand
parameters: {epsilon: 4, max_changes: 4}
epochs: {count: 8}
"""
WORDS = """
title: Students enrolled
description: From the day of registration on.
unit: students
labels: {1: enrolled}
"""


def test_job_has_the_labels_of_its_file() -> None:
    job = parse_job(PLAIN + WORDS)
    assert (job.title, job.people) == ("Students enrolled", "students")
    assert (job.reads("1"), job.reads("0")) == ("enrolled", "0")
    assert parse_job(PLAIN).people == "users"


def test_labels_are_deployed_but_not_in_the_fingerprint() -> None:
    worded, plain = (
        deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))
        for text in (PLAIN + WORDS, PLAIN)
    )
    assert DeployedJob.from_bytes(worded.to_bytes()) == worded
    assert worded.fingerprint == plain.fingerprint
    assert b"labels" not in plain.to_bytes()
    assert b"timezone" not in plain.to_bytes()


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        (PLAIN, 'title: "a\\nb"', "title"),
        (PLAIN, f"unit: {'x' * 41}", "at most 40 characters"),
        (PLAIN, "labels: {2: two}", 'labels: has the unknown value "2"'),
        (
            PLAIN.replace("future_rand", "range_values").replace(
                "max_changes: 4", "max_changes: 4, low: 0, high: 8, buckets: 8"
            ),
            "labels: {1: one}",
            "labels: requires a job with a list of items or values. Remove the key",
        ),
    ],
)
def test_invalid_labels_are_rejected(text: str, words: str, problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        parse_job(text + words)


def test_route_is_recomputed_for_a_copy_with_other_settings() -> None:
    values = {
        "name": "a",
        "protocol": "value_stream",
        "parameters": {"epsilon": 1, "max_changes": 1},
    }
    job = make_job({**values, "epochs": {"count": 8}, "shuffle": {"instances": 3}})
    assert job.route.reports == (Role.REPORTS, *FURTHER_REPORTS[:2])
    one = job.shuffle.model_copy(update={"instances": 1})
    assert job.model_copy(update={"shuffle": one}).route.stages == {
        "shuffle": Role.REPORTS,
        "aggregate": Role.SHUFFLED,
        "publish": Role.PARTIALS,
    }


@pytest.mark.parametrize("protocol", ["hadamard_values", "projective_geometry", "sampled_response"])
def test_labels_in_numbers_are_read_as_text(protocol: str) -> None:
    changes = ", max_changes: 2" * (protocol == "hadamard_values")
    job = parse_job(
        f"name: plans\nprotocol: {protocol}\nepochs: {{count: 4}}\n"
        f"parameters: {{epsilon: 1, domain: [1, 2]{changes}}}\n"
    )
    assert job.parameters.domain == ("1", "2")
