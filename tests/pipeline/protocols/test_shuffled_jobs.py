"""Jobs of shuffled counts, from the job file to what is published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.simulation.memory import MemoryDriver
from dpstream.pipeline.simulation.simulate import SimulatedCluster, simulate
from dpstream.pipeline.values.value_domains import CategoryDomain
from dpstream.topics.manifests import Fate
from tests.support.small_run import EPOCHS, USERS, generators, write_changes

MINIMUM = 100

JOBS = [
    "",
    ", dummies: negative_binomial",
    ", dummies: shuffle",
    ", changes: 1",
    ", changes: 1, boost: 2, dummies: shuffle",
]


def job_of(more: str) -> Job:
    return parse_job(
        f"name: small\nprotocol: shuffled_counts\n"
        f"parameters: {{epsilon: 20, delta: 1e-3{more}}}\n"
        f"epochs: {{count: {EPOCHS}}}\nshuffle: {{minimum: {MINIMUM}}}\n"
        "topics: {partitions: 2}\n"
    )


def deployed(more: str) -> DeployedJob:
    return deploy_job(job_of(more), deployed_at=0, deployment=bytes(16))


@pytest.fixture
def changes(tmp_path: Path) -> ChangeLog:
    return load_change_log(write_changes(tmp_path / "changes.csv"), last_epoch=EPOCHS)


@pytest.mark.parametrize("more", JOBS)
def test_a_job_publishes_what_it_planned(more: str, changes: ChangeLog) -> None:
    job = deployed(more)
    done = simulate(job, changes, seed=1, smooth=True)
    expected = plan(job_of(more), USERS)
    assert [record.fate for record in done.records] == [Fate.RELEASED] * EPOCHS
    for record, planned in zip(done.records, expected.epochs, strict=True):
        estimate = record.headline
        assert estimate is not None
        assert estimate.standard_deviation == pytest.approx(planned.standard_deviation)
        assert GAP not in estimate.flags
    # Errors of an epoch, over what they were planned to be: nobody changes more often than once.
    deviations = np.array([planned.standard_deviation for planned in expected.epochs])
    assert np.abs(done.errors() / deviations).max() < 7
    assert np.abs((done.errors() + 40 * deviations) / deviations).min() > 7
    assert expected.smoothed_rmse is None
    assert expected.guarantee.unit == "stream"


@pytest.mark.parametrize("more", [JOBS[2], JOBS[4]])
def test_a_window_below_the_minimum_has_no_estimate(more: str, changes: ChangeLog) -> None:
    cluster = SimulatedCluster(deployed(more), generators)
    producer = Producer(
        cluster.job, None, name="p", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enrol(changes.users)
    for epoch, values in enumerate(changes.values_by_epoch(), 1):
        here = MINIMUM - 1 if epoch == 5 else USERS
        producer.report(epoch, dict(zip(changes.users[:here], values[:here].tolist(), strict=True)))
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    records = cluster.new_estimates()
    assert [record.epoch for record in records if record.fate is Fate.TOO_SMALL] == [5]
    assert [record.epoch for record in records if record.estimate is None] == [5]


def test_too_many_messages_are_refused_with_what_to_do() -> None:
    with pytest.raises(JobError, match=r"allows 2: .*raise shuffle\.minimum.*`dummies: shuffle`"):
        job_of(", messages_per_user: 2").calibrate()


def test_what_must_be_trusted_is_said() -> None:
    ours = plan(job_of(", changes: 1"), USERS).guarantee.trust
    assert f"{MINIMUM} honest contributors" in ours
    stage = plan(job_of(", changes: 1, dummies: shuffle"), USERS).guarantee.trust
    assert "honest" not in stage
    assert "shuffle stage" in stage


ITEM_JOBS = [
    "",
    ", buckets: 5",
    ", cells: count_min, changes: 2",
    ", cells: count_min, dummies: shuffle",
]
LABELS = tuple("abcdefghijk")


@pytest.fixture
def item_changes(tmp_path: Path) -> ChangeLog:
    """User u comes to an item in epoch u mod 12 + 1; two of three to one of the first three."""
    rows = [f"user{u},{u % EPOCHS + 1},{LABELS[u % 3 if u % 9 else u % 11]}" for u in range(USERS)]
    path = tmp_path / "items.csv"
    path.write_text("\n".join(["user,epoch,value", *rows]))
    return load_change_log(path, domain=CategoryDomain(LABELS), last_epoch=EPOCHS)


@pytest.mark.parametrize("more", ITEM_JOBS)
def test_a_job_of_items_publishes_what_it_planned(more: str, item_changes: ChangeLog) -> None:
    more += f", domain: [{', '.join(LABELS)}]"
    job = deployed(more)
    done = simulate(job, item_changes, seed=1, smooth=True)
    expected = plan(job_of(more), USERS)
    deviations = np.array([planned.standard_deviation for planned in expected.epochs])
    assert [record.fate for record in done.records] == [Fate.RELEASED] * EPOCHS
    errors = done.errors().reshape(EPOCHS, len(LABELS)) / deviations[:, None]
    assert np.abs(errors).max() < 8
    assert 0.5 < np.square(errors).mean() < 2
    assert expected.guarantee.unit == "stream"
    assert expected.smoothed_rmse is None
    assert done.to_json()["epochs"][-1]["population"] == USERS
