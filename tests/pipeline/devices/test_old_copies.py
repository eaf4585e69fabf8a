"""Test that a producer with an outdated state directory is rejected before it draws again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import Role
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import job_text

USERS = [f"user{number}" for number in range(120)]


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def job(cluster: MemoryCluster) -> DeployedJob:
    return deploy(cast(Cluster, cluster), parse_job(job_text()), deployment=bytes(16), now=5)


def report(producer: Producer, epoch: int) -> None:
    producer.report(epoch, dict.fromkeys(USERS, 1))
    producer.close(epoch)


@pytest.mark.parametrize("decided", [False, True])
def test_old_copy_of_device_state_is_rejected(
    cluster: MemoryCluster, job: DeployedJob, tmp_path: Path, decided: bool
) -> None:
    """The copy is detected from the reports, or from the manifest if reports are deleted."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    whole = cast(Cluster, cluster)
    with open_producer(whole, job, state, name="north") as producer:
        producer.enroll(USERS)
        report(producer, 1)
    shutil.copytree(state, copy)
    with open_producer(whole, job, copy, name="north") as producer:
        assert producer.closed_epoch == 1, "a copy of the latest state is accepted"
    with open_producer(whole, job, state, name="north") as producer:
        report(producer, 2)
    if decided:
        people = len(USERS)
        manifest = Manifest(
            job.fingerprint, job.deployment, 2, WindowStatus.RELEASED, 0, 2, 1, (True,), (people,),
            people, people, 5,
        )  # fmt: skip
        cluster.append(job.topic(Role.MANIFESTS), encode_manifest(manifest))
        for partition in range(job.topics.partitions):
            topic = job.topic(Role.REPORTS)
            cluster.delete_below(topic, cluster.end_offsets(topic)[partition], partition)
    before = {place: len(records) for place, records in cluster.records.items()}
    with (
        pytest.raises(ProducerError, match="old copy: its last epoch is 1, but epoch 2 was sent"),
        open_producer(whole, job, copy, name="north"),
    ):
        pass
    assert {place: len(records) for place, records in cluster.records.items()} == before
    with open_producer(whole, job, state, name="north") as producer:
        report(producer, 3)
