"""Test whether a stage that has lost its offset needs deleted records."""

from __future__ import annotations

import pytest

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster
from dpstream.topics.names import Role
from tests.support.small_run import generators, job_text

PARTITION = 1
MORE = "\nshuffle: {minimum: 1}"


class Run(SimulatedCluster):
    def __init__(self, more: str = MORE) -> None:
        job = deploy_job(parse_job(job_text() + more), deployed_at=1_000, deployment=bytes(16))
        super().__init__(job, generators)
        self.producer = Producer(
            job, None, name="p", transport=MemoryDriver(self.log), generators=generators
        )
        self.producer.enroll(["ann", "bob"])
        self.produce(range(1, 5))
        self.settle()

    def produce(self, epochs: range) -> None:
        for epoch in epochs:
            self.producer.report(epoch, {"ann": 1})
            self.producer.close(epoch)


@pytest.fixture
def cluster() -> Run:
    return Run()


def needs(cluster: Run, stage: str, below: int) -> bool:
    worker = cluster.workers[stage]
    return worker.run(worker.stage.needs(PARTITION, below))


def run(cluster: Run, *stages: str) -> None:
    for stage in stages:
        worker = cluster.workers[stage]
        while worker.run(worker.poll()):
            pass
        worker.run(worker.stage.tick(0.0))


def test_records_of_published_windows_are_no_longer_needed(cluster: Run) -> None:
    end = cluster.log.end(Role.REPORTS, PARTITION)
    assert not needs(cluster, "shuffle", end)
    assert not needs(cluster, "aggregate", cluster.log.end(Role.SHUFFLED, PARTITION))


def test_reports_are_needed_until_a_manifest_covers_them(cluster: Run) -> None:
    """Retention might have deleted the reports before any stage has read them."""
    cluster.produce(range(5, 7))
    assert needs(cluster, "shuffle", cluster.log.end(Role.REPORTS, PARTITION))


def test_chunks_are_needed_until_their_window_is_published(
    cluster: Run,
) -> None:
    before = cluster.log.end(Role.SHUFFLED, PARTITION)
    cluster.produce(range(5, 7))
    run(cluster, "shuffle")
    after = cluster.log.end(Role.SHUFFLED, PARTITION)
    assert after > before
    assert not needs(cluster, "aggregate", before)
    assert needs(cluster, "aggregate", after)
    assert needs(cluster, "shuffle", cluster.log.end(Role.REPORTS, PARTITION))
    cluster.settle()
    assert not needs(cluster, "aggregate", after)


def test_publisher_needs_all_records_of_its_topic(cluster: Run) -> None:
    assert needs(cluster, "publish", 1)


def test_reports_at_a_parallel_shuffler_are_needed_until_their_window_is_published() -> None:
    cluster = Run("\nshuffle: {minimum: 1, instances: 2}")
    second = cluster.workers["instance-2"].stage.role
    assert not needs(cluster, "instance-2", cluster.log.end(second, PARTITION))
    cluster.produce(range(5, 7))
    end = cluster.log.end(second, PARTITION)
    # The epochs are undecided, then lack a partial window, then are unpublished.
    assert needs(cluster, "instance-2", end)
    run(cluster, "shuffle")
    assert needs(cluster, "instance-2", end)
    run(cluster, "instance-2")
    assert needs(cluster, "instance-2", end)
    cluster.settle()
    assert not needs(cluster, "instance-2", end)
    assert needs(cluster, "instance-2", end + 1)
