"""Whoever looks for one job takes in no other."""

from __future__ import annotations

from typing import cast

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployed_jobs import DeploymentError, find_deployed
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.topics.names import JOBS_TOPIC
from tests.support.memory_cluster import MemoryCluster


@pytest.fixture
def cluster() -> Cluster:
    """A cluster on which three jobs are deployed."""
    cluster = cast(Cluster, MemoryCluster())
    for number, name in enumerate(("first", "second", "third"), 1):
        values = {
            "name": name,
            "protocol": "future_rand",
            "parameters": {"epsilon": 4.0, "changes": 2},
            "epochs": {"count": 8},
        }
        deploy(cluster, make_job(values), deployment=bytes([number]) * 16, now=number)
    return cluster


def test_a_job_is_found_without_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_in = []
    from_bytes = DeployedJob.from_bytes

    def noted(data: bytes) -> DeployedJob:
        taken_in.append(from_bytes(data))
        return taken_in[-1]

    monkeypatch.setattr(DeployedJob, "from_bytes", noted)
    found = find_deployed(cluster, "second")
    assert (found.name, found.deployment) == ("second", bytes([2]) * 16)
    assert taken_in == [found]


def test_what_is_not_there_is_told_with_what_is(cluster: Cluster) -> None:
    undeploy(cluster, "first")
    for name in ("first", "fourth", "dpstream"):
        with pytest.raises(
            DeploymentError, match=rf"job {name} is not deployed \(deployed: second, third\)"
        ):
            find_deployed(cluster, name)


def test_a_job_of_another_version_is_not_taken_for_none(cluster: Cluster) -> None:
    cluster.append(JOBS_TOPIC, b"{}", b"second")
    with pytest.raises(DeploymentError, match="second was deployed by another version"):
        find_deployed(cluster, "second")
    assert find_deployed(cluster, "third").name == "third"
