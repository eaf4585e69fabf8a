"""Test deployed jobs: every default is resolved once, so all readers see the same job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.amplification import amplified_delta, of_any_randomizer
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.guarantee import Guarantee, ShuffledStreams
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.names import Role

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
def test_a_single_answer_is_hidden_among_the_reports_of_its_window(
    parameters: dict[str, Any], epsilon: float
) -> None:
    job = job_of("sampled_response", 500, parameters=parameters)
    assert (job.parameters.epsilon, job.parameters.reports) == (epsilon, 1)
    guarantee = deploy_job(job, deployed_at=0).guarantee
    assert guarantee.shuffled == ShuffledStreams(0.5, 1e-6, 500, one_window=True)
    assert "499 other honest users in each window" in guarantee.shuffled.trust
    assert Guarantee.from_json(guarantee.to_json()) == guarantee


def test_guarantee_states_local_and_central_epsilon() -> None:
    deployed = deploy_job(job_of(), deployed_at=0)
    assert deployed.parameters.epsilon == 5.917
    guarantee = deployed.guarantee
    assert 5.9 < guarantee.epsilon <= 5.917
    assert guarantee.delta == 0.0
    assert guarantee.trust.startswith("none")
    shuffled = guarantee.to_json()["shuffled"]
    assert shuffled == asdict(ShuffledStreams(0.5, 1e-6, 100_000))
    assert "epsilon 0.5, delta 1e-06 if these are trusted:" in str(guarantee)
    assert "the shuffler to shuffle, and 99,999 other honest users" in str(guarantee)
    # Charges also cover users who were absent.
    assert Charge.of(deployed).epsilon == guarantee.epsilon
    assert DeployedJob.from_bytes(deployed.to_bytes()) == deployed


def test_local_and_central_epsilon_add_up_over_horizons() -> None:
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
    ],
)
def test_invalid_central_section_is_rejected_with_its_key(more: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        job_of(**more)


def test_each_deployment_has_its_own_id() -> None:
    assert deployed().deployment != deployed().deployment
    assert deployed().fingerprint == deployed().fingerprint
