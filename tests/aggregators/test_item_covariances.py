"""Test covariances of items estimated from the same reports, against simulated devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_covariances import ItemCovariances
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from tests.support.new_jobs import new_job

TRIALS = 400
USERS = 1_000
HELD = (450, 250, 200)
"""Users with items 1, 2 and 3; the others have none, unless the domain is complete."""


def covariances_of(job: DeployedJob) -> ItemCovariances:
    found = job.protocol_entry.aggregation.item_covariances(job.law, job.parameters)
    assert found is not None
    return found


def correlations(job: DeployedJob, held: tuple[int, ...], answering: int) -> tuple[float, float]:
    """Return the simulated and the computed correlation of items 1 and 2.

    A random `answering` of the users report, in addition to any sampling by the protocol.
    """
    rng, generator = seeded_generator(3), np.random.default_rng(4)
    values = np.repeat(np.arange(len(held)) + 1, held)
    values = np.concatenate([values, np.zeros(USERS - len(values), np.int64)])
    if job.domain.shape:
        values = values[:, None]
    found, reports = [], 0
    for _ in range(TRIALS):
        devices, aggregator = job.randomizer(), job.aggregator()
        devices.enroll(USERS, rng)
        present = generator.permutation(USERS) < answering
        words = devices.report(1, values, present, rng)
        aggregator.add(1, written_out(words), None)
        last = 1 if job.last_epoch is None else job.last_epoch
        participation = Participation.constant(last, USERS)
        participation.set(1, answering, USERS)
        estimate = aggregator.estimate(1, participation)
        assert estimate is not None
        found.append(estimate.intervals[0, :2])
        reports = estimate.reports if job.protocol == "sampled_response" else answering
    spread = np.std(np.array(found), axis=0)
    computed = covariances_of(job)(reports, USERS, np.array(held, np.float64))
    simulated = np.cov(np.transpose(found))[0, 1] / (spread[0] * spread[1])
    return float(simulated), float(computed[0, 1] / (spread[0] * spread[1]))


def job_of(protocol: str, items: int, **parameters: Any) -> DeployedJob:
    domain = [f"i{item}" for item in range(items)]
    count = 1 if protocol != "sampled_response" else 2
    job = new_job(
        "items",
        protocol,
        {"epsilon": 2.0, "domain": domain, **parameters},
        count=count,
        minimum=200,
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


@pytest.mark.parametrize(
    ("job", "held", "answering", "none_expected"),
    [
        (job_of("sampled_response", 3, reports=1, complete=True), (500, 300, 200), USERS, False),
        (job_of("sampled_response", 4, reports=1), HELD, USERS, False),
        # Item 9 is not on the line of items 1 and 2.
        (
            job_of("sampled_response", 30, reports=1, complete=True),
            (500, 300, *(0,) * 6, 200),
            USERS,
            False,
        ),
        (job_of("projective_geometry", 3), HELD, USERS, False),
        (job_of("hadamard_values", 3, max_changes=1), HELD, USERS, True),
        (job_of("hadamard_values", 3, max_changes=1, epsilon=4.0), HELD, 200, False),
        (job_of("shuffled_counts", 3, delta=1e-4), HELD, 300, False),
        (
            job_of("shuffled_counts", 3, delta=1e-4, max_changes=1, cells="count_min"),
            HELD,
            999,
            True,
        ),
        (job_of("count_min", 3, delta=1e-4, rows=1), HELD, 300, False),
    ],
    ids=lambda value: value.protocol if isinstance(value, DeployedJob) else "",
)
def test_items_are_as_correlated_as_computed(
    job: DeployedJob, held: tuple[int, ...], answering: int, none_expected: bool
) -> None:
    simulated, computed = correlations(job, held, answering)
    # The standard deviation of a correlation is 1 / sqrt(400) = .05.
    assert simulated == pytest.approx(computed, abs=0.13)
    assert (abs(computed) < 0.05) == none_expected
