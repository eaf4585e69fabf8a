"""Test that a budget change updates the last epoch that devices see, with a new signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import is_signed, signing_key_at
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.state import signing_key_file
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job


def job_with(budget: float, **more: object) -> Job:
    return new_job(
        "logins",
        "future_rand",
        {"epsilon": 1, "max_changes": 2},
        epochs={"count": 4, "start": "2026-03-01", "length": "1d", "renew": True},
        budget={"epsilon": budget},
        devices={},
        **more,
    )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    return cast(Cluster, MemoryCluster())


def deployed(cluster: Cluster, job: Job) -> DeployedJob:
    deploy(cluster, job, deployment=bytes(16), now=1_772_323_200_000)
    return read_jobs(cluster).jobs["logins"]


def description_of(job: DeployedJob) -> dict[str, Any]:
    assert job.signed_description is not None
    assert is_signed(job.signed_description)
    body: dict[str, Any] = json.loads(job.signed_description.statement)
    return body


def test_changed_budget_alters_only_the_last_epoch_in_the_signed_description(
    cluster: Cluster,
) -> None:
    first = description_of(deployed(cluster, job_with(5)))
    assert first["deployed"] == 1_772_323_200_000
    assert (first["epochs"]["last"], first["revision"]) == (20, 0)
    for budget, last, revision in ((3, 12, 1), (2, 8, 2)):
        again = description_of(deployed(cluster, job_with(budget)))
        assert (again["epochs"]["last"], again["revision"]) == (last, revision)
        again["epochs"]["last"], again["revision"] = 20, 0
        assert again == first


def test_description_with_an_unchanged_last_epoch_is_not_signed_again(cluster: Cluster) -> None:
    first = deployed(cluster, job_with(5))
    second = deployed(cluster, job_with(5, title="Logins", shuffle={"grace": "2h"}))
    assert second.title == "Logins"
    assert second.signed_description == first.signed_description


def test_deploy_with_another_signing_key_changes_nothing(cluster: Cluster) -> None:
    first = deployed(cluster, job_with(5))
    signing_key_file().unlink()
    signing_key_at(signing_key_file())
    with pytest.raises(WrongKeyError, match=("Deploy with the job's original signing key")):
        deployed(cluster, job_with(3))
    assert read_jobs(cluster).jobs["logins"] == first
