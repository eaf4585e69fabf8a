"""Test job files: four keys suffice, and errors name the line and the valid values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.central import hiding
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job, load_job, make_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.marked_yaml import read_marked_yaml
from dpstream.pipeline.protocols.protocol import Example, Law, Shuffling
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.values.durations import parse_duration
from dpstream.randomizers.accounting.amplification import amplified_delta, of_any_randomizer
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.guarantee import Guarantee, ShuffledStreams
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponseLaw
from dpstream.randomizers.set_systems import Subsets
from dpstream.topics.names import Role
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
        "labels, measures, attributes, by, trust, ratios, history, background, by_minimum, name, "
        "protocol, parameters, epochs, shuffle, topics, population, budget, central, "
        "sealed, devices, input, roll_up",
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
        ("input: {true: [ja], false: [JA]}", "input.true: contains 'ja', and so does 'false'"),
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


@pytest.mark.parametrize("protocol", ["hadamard_values", "projective_geometry", "sampled_response"])
def test_labels_that_are_numbers_are_read_as_text(protocol: str) -> None:
    changes = ", max_changes: 2" * (protocol == "hadamard_values")
    job = parse_job(
        f"name: plans\nprotocol: {protocol}\nepochs: {{count: 4}}\n"
        f"parameters: {{epsilon: 1, domain: [1, 2]{changes}}}\n"
    )
    assert job.parameters.domain == ("1", "2")


VALUES: dict[str, Any] = {
    "name": "students",
    "protocol": "future_rand",
    "parameters": {"epsilon": 1, "max_changes": 4},
    "epochs": {"count": 12, "start": "2013-10-01", "length": "P1W"},
}


def deployed(**values: Any) -> DeployedJob:
    return deploy_job(make_job({**VALUES, **values}), deployed_at=1_700_000_000_000)


def test_job_record_contains_the_whole_job() -> None:
    offsets = {
        role: (7, 0, 3, 9) if role in (Role.REPORTS, Role.SHUFFLED) else (5,)
        for role in make_job(VALUES).topic_settings()
    }
    job = deploy_job(
        make_job(VALUES), start_offsets=offsets, deployed_at=17, deployment=bytes(range(16))
    )
    read = DeployedJob.from_bytes(job.to_bytes())
    assert read == job
    assert read.to_bytes() == job.to_bytes()
    assert (read.name, read.last_epoch, read.deployed_at) == ("students", 12, 17)
    assert (read.deployment, read.fingerprint) == (bytes(range(16)), job.fingerprint)
    assert len(read.fingerprint) == 16
    assert (read.start_offset(Role.SHUFFLED, 3), read.start_offset(Role.MANIFESTS)) == (9, 5)
    assert describe_difference(read, make_job(VALUES)) == []


def test_job_record_suffices_for_devices_and_servers() -> None:
    job = DeployedJob.from_bytes(deployed().to_bytes())
    assert job.law == make_job(VALUES).calibrate()
    assert job.guarantee.epsilon <= 1
    randomizer, rng = job.randomizer(), seeded_generator(1)
    randomizer.enroll(100, rng)
    aggregator = job.aggregator()
    aggregator.add(4, written_out(randomizer.report(4, np.ones(100, np.int8), None, rng)), None)
    assert job.aggregator_from_bytes(aggregator.to_bytes()).to_bytes() == aggregator.to_bytes()


def test_deployment_requires_start_offsets_for_every_topic() -> None:
    body = json.loads(deployed().to_bytes())
    del body["start_offsets"]["status"]
    with pytest.raises(
        JobError, match="start_offsets: has 0 offsets for status; expected 1, one per partition"
    ):
        DeployedJob.from_bytes(json.dumps(body).encode())


@pytest.mark.parametrize(
    "values",
    [
        {"parameters": {"epsilon": 2, "max_changes": 4}},
        {"parameters": {"epsilon": 1, "max_changes": 3}},
        {"parameters": {"epsilon": 1, "max_changes": 4, "calibration": "published"}},
        {"epochs": {**VALUES["epochs"], "count": 11}},
        {"epochs": {**VALUES["epochs"], "start": "2013-10-02"}},
        {"epochs": {**VALUES["epochs"], "length": "P8D"}},
        {"shuffle": {"minimum": 99}},
    ],
)
def test_fingerprint_changes_with_the_meaning_of_reports(values: dict[str, Any]) -> None:
    assert deployed(**values).fingerprint != deployed().fingerprint


@pytest.mark.parametrize(
    "values",
    [
        {"name": "others"},
        {"shuffle": {"grace": "1h", "order": "random", "producers": 2}},
        {"topics": {"partitions": 8, "retention": "1d", "replication": 3}},
        {"epochs": {"count": 12, "start": "2013-10-01T02:00+02:00", "length": "7d"}},
    ],
)
def test_fingerprint_ignores_names_windows_and_topics(values: dict[str, Any]) -> None:
    assert deployed(**values).fingerprint == deployed().fingerprint


def test_fingerprint_is_pinned_and_ignores_estimators() -> None:
    values = {
        "protocol": "p",
        "parameters": {"epsilon": 1.0, "items": 3, "estimator": "min", "messages_per_user": 9},
        "constants": {"weights": [3, 1]},
        "epochs": {"count": 4, "start": None, "length": None, "renew": False},
        "shuffle": {"minimum": 100, "grace": "PT1M"},
    }
    assert fingerprint_of(values).hex() == "250658c37df61c5e241be720bd1972bd"
    fewer = {**values, "parameters": {"epsilon": 1.0, "items": 3}}
    assert fingerprint_of(fewer) == fingerprint_of(values)


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    *sections, last = key.split(".")

    def apply(record: dict[str, Any]) -> None:
        for section in sections:
            record = record[section]
        record[last] = value

    return apply


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (change("parameters.epsilon", 0.5), "fingerprint: does not match the values of job stu"),
        (change("constants.epsilon", 9.0), "fingerprint: does not match the values"),
        (change("shuffle.minimum", 1), "fingerprint: does not match the values"),
        (change("fingerprint", "00" * 16), "fingerprint: does not match the values"),
        (change("version", 2), "version: 2 is not allowed; expected"),
        (change("surprise", 2), "surprise: unknown key"),
        (change("protocol", "future"), 'protocol: "future" is not allowed'),
        (change("start_offsets.reports", [0, 0, 0, -1]), "start_offsets.reports.3: -1 is not"),
        (lambda record: record.pop("shuffle"), "fingerprint: does not match the values"),
        (lambda record: record.pop("constants"), "constants: is required"),
    ],
)
def test_altered_job_record_is_rejected(
    alter: Callable[[dict[str, Any]], object], message: str
) -> None:
    record = json.loads(deployed().to_bytes())
    alter(record)
    with pytest.raises(JobError) as caught:
        DeployedJob.from_bytes(json.dumps(record).encode())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (
            change("parameters.epsilon", 0.5),
            "constants: spend epsilon 1.0, but parameters.epsilon is 0.5. Deploy the job again",
        ),
        (change("constants.epsilon", 0.5), "loss is 1.0; expected at most epsilon,"),
        (change("constants.order_weights", []), "constants: invalid constants for future_rand"),
    ],
)
def test_constants_that_contradict_the_parameters_are_rejected(
    alter: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Even with a matching fingerprint: the writer of the record is not trusted."""
    record = json.loads(deployed().to_bytes())
    alter(record)
    record["fingerprint"] = fingerprint_of(record).hex()
    with pytest.raises(JobError) as caught:
        DeployedJob.from_bytes(json.dumps(record).encode())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_constants_that_exceed_the_declared_delta_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Approximate:
        epsilon: float = 1.0
        delta: float = 1e-9

    record = deployed().to_bytes()
    promised = deployed().guarantee
    for delta, rejected in ((1e-9, False), (2e-9, True)):
        job = deployed().model_copy(update={"parameters": Approximate()})
        job.__dict__["guarantee"] = replace(promised, delta=delta)
        monkeypatch.setattr(
            "dpstream.pipeline.jobs.deployed_job.validate", lambda cls, values, job=job: job
        )
        if rejected:
            with pytest.raises(
                JobError, match=r"spend delta 2e-09, but parameters\.delta is 1e-09"
            ):
                DeployedJob.from_bytes(record)
        else:
            DeployedJob.from_bytes(record)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_example_jobs_of_every_protocol_pass_the_loss_check(name: str) -> None:
    for example in PROTOCOLS[name].examples:
        parameters = json.loads(json.dumps(asdict(example.parameters)))
        job = deployed(
            protocol=name,
            parameters=parameters,
            epochs={"count": example.last_epoch},
            shuffle={"minimum": example.minimum},
        )
        assert DeployedJob.from_bytes(job.to_bytes()) == job


def test_job_record_with_changed_operational_settings_is_accepted() -> None:
    record = json.loads(deployed().to_bytes())
    change("shuffle.grace", "PT2H")(record)
    change("topics.retention", "P1D")(record)
    tuned = DeployedJob.from_bytes(json.dumps(record).encode())
    assert (tuned.shuffle.grace, tuned.topics.retention_ms) == (7200, 86_400_000)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"null", b"{", b"[" * 100_000, b"NaN"])
def test_malformed_job_record_raises_a_job_error(data: bytes) -> None:
    with pytest.raises(JobError, match="not the record of a deployed job"):
        DeployedJob.from_bytes(data)


CENTRAL = {"epsilon": 0.5, "delta": 1e-6}


def job_of(protocol: str = "value_stream", users: int | None = 100_000, **more: Any) -> Job:
    return make_job(
        {
            "name": "mixed",
            "protocol": protocol,
            "parameters": more.pop("parameters", {"max_changes": 2}),
            "epochs": {"count": 16},
            **({} if users is None else {"shuffle": {"minimum": users}}),
            "central": CENTRAL,
            **more,
        }
    )


def test_local_epsilon_is_the_largest_allowed_by_the_central_guarantee() -> None:
    epsilon = job_of().parameters.epsilon
    assert epsilon == 5.917  # near 6
    spent, more = (
        amplified_delta(of_any_randomizer(loss), 100_000, 0.5) for loss in (epsilon, epsilon + 1e-3)
    )
    assert spent <= 1e-6 < more


@pytest.mark.parametrize(
    ("parameters", "epsilon"),
    [({}, 1.812), ({"domain": ["a", "b", "c"]}, 1.508), ({"reports": 1, "epsilon": 1.5}, 1.5)],
)
def test_single_answer_is_hidden_among_the_reports_of_its_window(
    parameters: dict[str, Any], epsilon: float
) -> None:
    job = job_of("sampled_response", 500, parameters=parameters)
    assert (job.parameters.epsilon, job.parameters.reports) == (epsilon, 1)
    guarantee = deploy_job(job, deployed_at=0).guarantee
    assert guarantee.shuffled == ShuffledStreams(0.5, 1e-6, 500, one_window=True)
    assert "499 other honest users in each window" in guarantee.shuffled.trust
    assert Guarantee.from_json(guarantee.to_json()) == guarantee


@pytest.mark.parametrize("example", PROTOCOLS["sampled_response"].examples)
def test_reports_are_hidden_as_randomized_bits_only_if_they_are_bits(example: Example) -> None:
    entry = PROTOCOLS["sampled_response"]
    law: Any = entry.calibrate(example.parameters, example.last_epoch, 1)
    hidden = hiding(entry, example.parameters)
    assert (hidden is None) == isinstance(law, LeveledResponseLaw)
    assert hidden is None or hidden.binary == (law.sets == Subsets(2, 1))


def test_guarantee_states_local_and_central_epsilon() -> None:
    deployed = deploy_job(job_of(), deployed_at=0)
    assert deployed.parameters.epsilon == 5.917
    guarantee = deployed.guarantee
    assert 5.9 < guarantee.epsilon <= 5.917
    assert guarantee.delta == 0.0
    assert guarantee.trust.startswith("none")
    shuffled = guarantee.to_json()["shuffled"]
    assert shuffled == asdict(ShuffledStreams(0.5, 1e-6, 100_000))
    assert "delta 1e-06 for a user's whole stream if these are trusted:" in str(guarantee)
    assert "the shuffler to shuffle, and 99,999 other honest users" in str(guarantee)
    # Charges also cover users who were absent.
    assert Charge.of(deployed).epsilon == guarantee.epsilon
    assert DeployedJob.from_bytes(deployed.to_bytes()) == deployed


def test_local_and_central_epsilon_are_summed_over_horizons() -> None:
    job = job_of(epochs={"count": 16, "renew": True})
    over = deploy_job(job, deployed_at=0).guarantee_at(33, 1)
    assert over.shuffled is not None
    assert over.shuffled.epsilon == pytest.approx(1.5)
    assert over.shuffled.delta >= 3e-6 * (1 - 1e-15)
    assert over.epsilon == pytest.approx(3 * 5.917, rel=1e-4)


def test_altered_central_guarantee_is_detected() -> None:
    values = json.loads(deploy_job(job_of(), deployed_at=0).to_bytes())
    values["central"]["epsilon"] = 0.1
    with pytest.raises(JobError, match="fingerprint"):
        DeployedJob.from_bytes(json.dumps(values).encode())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"users": None}, "shuffle.minimum: is missing"),
        (
            {"parameters": {"max_changes": 2, "epsilon": 6.5}},
            "parameters.epsilon: is 6.5; expected at most ",
        ),
        (
            {"protocol": "count_min", "parameters": {"delta": 1e-6, "domain": ["a"]}},
            "count_min does not support 'central'",
        ),
        ({"central": {"epsilon": 0.5}}, "central.delta: is required"),
        (
            {"protocol": "sampled_response", "parameters": {"reports": 2}},
            "parameters.reports: is 2; expected 1",
        ),
        (
            {"protocol": "sampled_response", "parameters": {"epsilon": 6.0}, "users": 500},
            "expected at most 1.812",
        ),
        (
            {"protocol": "sampled_response", "parameters": {"domain": {"bits": 24}}},
            "only among those about the same level.*: value_stream, future_rand, hadamard_values",
        ),
    ],
)
def test_error_for_an_invalid_central_section_states_its_key(
    more: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobError, match=words):
        job_of(**more)


def test_each_deployment_has_its_own_id() -> None:
    assert deployed().deployment != deployed().deployment
    assert deployed().fingerprint == deployed().fingerprint
