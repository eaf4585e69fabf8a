"""Test ledger output for whole streams: participation in every released window."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, cast

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy
from dpstream.randomizers.accounting.whole_streams import epsilon_of_streams
from dpstream.randomizers.guarantee import rounded_up
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import Role
from tests.support.budgeted_jobs import job_about
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

ENROLLED = (300, 200, 100)


def begin(cluster: MemoryCluster, **keys: Any) -> DeployedJob:
    job = job_about("first", **{"epochs": {"count": 8}, **keys})
    return deploy(cast(Cluster, cluster), job, deployment=secrets.token_bytes(16), now=5)


def decide(
    cluster: MemoryCluster,
    job: DeployedJob,
    epoch: int,
    inside: Sequence[bool],
    *,
    absent: int = 0,
    enrolled: Sequence[int] = ENROLLED,
    window_status: WindowStatus = WindowStatus.RELEASED,
) -> None:
    populations = tuple(n for n, is_in in zip(enrolled, inside, strict=True) if is_in)
    manifest = Manifest(
        job.fingerprint, job.deployment, epoch, window_status, 0, 0, 1, tuple(inside),
        populations, sum(populations) - absent, sum(enrolled), 5,
    )  # fmt: skip
    cluster.append(job.topic(Role.MANIFESTS), encode_manifest(manifest))


def streams(dpstream: Commands) -> list[dict[str, Any]]:
    (charge,) = dpstream("ledger", "first", "--json").json["charges"]
    found: list[dict[str, Any]] = charge["released"]["streams"]
    return found


def test_devices_present_in_all_windows_have_a_smaller_privacy_loss(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    """The second producer misses one window; ten unidentified devices miss another."""
    job = begin(cluster)
    decide(cluster, job, 1, (True, True, True))
    decide(cluster, job, 2, (True, False, True))
    decide(cluster, job, 3, (True, True, True), absent=10)
    amplified = epsilon_of_streams(1.0, 390, 1e-6)
    assert streams(dpstream) == [
        {
            "horizon": 1,
            "windows": 3,
            "devices": 390,
            "producers": 2,
            "epsilon": amplified,
            "delta": 1e-6,
            "other_producers": 1,
            "other_epsilon": 1.0,
        }
    ]
    assert amplified < 0.4
    result = dpstream("ledger", "first")
    assert result.code == 0
    text = " ".join(result.output.split())
    name = f"first {job.deployment.hex()[:8]}"
    assert f"{name} 3 390 2 {rounded_up(amplified)} 1e-06 1 1 " in text
    assert "the shuffler shuffles" in text
    assert "added epsilon 1, delta 0, by 1 deployment" in text, "the full charge"


def test_continuous_participation_is_determined_per_horizon(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    job = begin(cluster, epochs={"count": 2, "renew": True}, budget=9)
    for epoch in (1, 2):
        decide(cluster, job, epoch, (True, True, True))
    decide(cluster, job, 3, (True, True, False))
    decide(cluster, job, 3, (False, True, False))  # The first manifest of an epoch counts.
    found = streams(dpstream)
    assert [(each["horizon"], each["devices"], each["producers"]) for each in found] == [
        (1, 600, 3),
        (2, 500, 2),
    ]
    assert f"first {job.deployment.hex()[:8]}, horizon 2 1 500 2" in " ".join(
        dpstream("ledger").output.split()
    )
