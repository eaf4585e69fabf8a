"""Test that records never exceed the computed size, and that excessive sizes are rejected."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.kafka.record_sizes import (
    RecordSizeError,
    check_record_sizes,
    largest_records,
)
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.operations.deploy_plan import plan_deployment
from dpstream.pipeline.planning.review import warnings_for
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.conformance.cases import CASES, Case
from tests.conformance.jobs import case_job_file
from tests.support.new_jobs import new_job

USERS = 40
ONE_OF_EACH = {case.protocol.name: case for case in CASES}


def generators(purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(5, len(purpose), number)


class KeepingLog(MemoryLog):
    """Log without deletion, so that all records are measured."""

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


def users_of(job: DeployedJob) -> int:
    """Return how many users release every window, also if only some are asked at an epoch."""
    sampled = job.protocol_entry.sampled
    asked = 1 if sampled is None else sampled(job.law)
    return math.ceil(max(USERS, job.shuffle.minimum) / asked)


def written_by(job: DeployedJob) -> tuple[DeployedJob, KeepingLog]:
    log = KeepingLog(lambda: 1)
    cluster = SimulatedCluster(job, generators, NoiseKey(bytes(range(32))), log=log)
    producer = Producer(
        cluster.job, None, name="one", transport=MemoryDriver(log), generators=generators
    )
    users = users_of(job)
    producer.enroll([str(number) for number in range(users)])
    for epoch in (1, 2):
        held = np.full((users, *job.domain.shape), job.domain.size - 1, np.int64)
        if isinstance(job.domain, PanelDomain):
            held = np.minimum(held, job.domain.largest)
        producer.report_all(epoch, held)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return cluster.job, log


@pytest.mark.parametrize("case", ONE_OF_EACH.values(), ids=ONE_OF_EACH)
def test_records_stay_within_the_computed_size(case: Case) -> None:
    job, log = written_by(deploy_job(make_job(case_job_file(case)), deployed_at=0))
    largest = largest_records(job, users_of(job))
    written = {
        role: max(map(len, values))
        for role in job.topic_settings()
        if (values := [v for n in range(job.topics.partitions) for v in log.values(role, n)])
    }
    assert {Role.REPORTS, Role.SHUFFLED, Role.PARTIALS, Role.ESTIMATES} <= written.keys()
    for role, size in written.items():
        assert size <= largest[job.topic(role)], role
    assert len(job.to_bytes()) <= largest[JOBS_TOPIC]
    # If only the lengths of numbers vary, the bound is not far too large.
    assert largest[job.topic(Role.ESTIMATES)] < written[Role.ESTIMATES] + 10_000


def job_of(protocol: str, minimum: int = 1_000, **parameters: Any) -> Job:
    return new_job("wide", protocol, parameters, count=1, minimum=minimum)


def labels(count: int) -> list[str]:
    return [f"{number:x}" for number in range(count)]


def test_size_bound_for_estimate_records_covers_the_longest_numbers() -> None:
    job = deploy_job(
        job_of("hadamard_values", max_changes=1, epsilon=1, domain=labels(3_000)), deployed_at=0
    )
    people = 20_000
    values = np.full(3_000, -1000.0 * people + 0.1)
    found = ItemEstimates(values, 1e9 / 3, 1e9 / 7, 2**53, 2**53, ("gap",) * 5)
    guarantee = job.guarantee.to_json()
    record = EstimateRecord(
        bytes(16), 1, WindowStatus.RELEASED, 2**42, people, people, found, guarantee
    )
    size = len(record.to_bytes())
    assert size <= largest_records(job, people)[job.topic(Role.ESTIMATES)] < size + 10_000


def test_job_with_oversized_records_is_rejected_before_it_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protocols from other packages might have larger domains, simulated here by more digits."""
    monkeypatch.setattr("dpstream.pipeline.kafka.record_sizes._TIMES_USERS", 10**260)
    job = job_of("hadamard_values", max_changes=1, epsilon=1, domain=labels(4_000))
    with pytest.raises(RecordSizeError) as caught:
        check_record_sizes(deploy_job(job, deployed_at=0))
    message = str(caught.value)
    assert "wide.estimates" in message
    assert "4,000 items" in message
    assert "Use fewer items, or use a domain" in message
    plan = plan_deployment(Spending(), {}, job, deployment=bytes(16), now=1)
    assert isinstance(plan.rejection, RecordSizeError)
    law = deploy_job(job, deployed_at=0).law
    assert any("deploy rejects it" in each for each in warnings_for(job, law, 5_000))


def test_labels_too_long_for_a_record_are_rejected() -> None:
    job = job_of(
        "projective_geometry", epsilon=1, domain=["x" * 60 + each for each in labels(20_000)]
    )
    with pytest.raises(RecordSizeError, match=r"dpstream\.jobs.*shorter labels"):
        check_record_sizes(deploy_job(job, deployed_at=0))
