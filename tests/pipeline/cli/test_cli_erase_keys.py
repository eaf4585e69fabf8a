"""Test ``dpstream erase-keys``: erase only keys that have expired in every job."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.names import JOBS_TOPIC
from tests.support.commands import Commands
from tests.support.live_page import publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import items

JOB = """\
name: {name}
protocol: fragments
parameters: {{epsilon: 2, delta: 1e-3, domain: [ash, oak]}}
epochs: {{count: {epochs}}}
shuffle: {{minimum: 100{instances}}}
sealed: {{aggregate: {aggregate}, stages: {stages}{rotate}}}
"""
NAMES = ("aggregator-1", "aggregator-2", "stage-1", "stage-2", "stranger")


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    dpstream = Commands(capsys)
    assert dpstream("keygen", *NAMES).code == 0
    return dpstream


@pytest.fixture
def rotating(dpstream: Commands, cluster: MemoryCluster) -> DeployedJob:
    return deployed(
        cluster,
        name="rotating",
        epochs=5,
        aggregate="[aggregator-1.pub, aggregator-2.pub]",
        stages="[[stage-1.pub, stage-2.pub]]",
        rotate=", rotate: 2",
    )


def deployed(cluster: MemoryCluster, **settings: object) -> DeployedJob:
    path = Path("job.yaml")
    path.write_text(JOB.format(**{"instances": "", **settings}))
    job, name = load_job(path), str(settings["name"]).encode()
    return deploy(cast(Cluster, cluster), job, deployment=name.ljust(16), now=0)


def publish_up_to(cluster: MemoryCluster, job: DeployedJob, last: int, first: int = 1) -> None:
    for epoch in range(first, last + 1):
        publish(cluster, job, epoch, some())


def some() -> ItemEstimates:
    return items(50.0, 40.0)


def private_keys() -> list[str]:
    return sorted(path.stem for path in Path("home/sealing-keys").glob("*.key"))


def test_key_is_erased_after_its_last_epoch_is_published(
    dpstream: Commands, cluster: MemoryCluster, rotating: DeployedJob
) -> None:
    publish_up_to(cluster, rotating, 1)
    assert "no key period has expired: nothing to erase" in dpstream("erase-keys", "--yes").output
    assert private_keys() == sorted(NAMES)
    publish_up_to(cluster, rotating, 2, first=2)
    named = dpstream("erase-keys").output
    assert "expired: aggregator-1.key, stage-1.key. To erase them: 'dpstream erase-keys" in named
    assert private_keys() == sorted(NAMES)
    assert "2 keys erased" in dpstream("erase-keys", "--yes").output
    assert private_keys() == ["aggregator-2", "stage-2", "stranger"]
    # No key is left to erase: the last keys are used until the end of the job.
    publish_up_to(cluster, rotating, 4, first=3)
    assert dpstream("erase-keys", "--yes", "--json").json["erased"] == []
    publish_up_to(cluster, rotating, 5, first=5)
    assert "2 keys erased" in dpstream("erase-keys", "--yes").output
    assert private_keys() == ["stranger"]
    assert "no deployed job uses a key" in dpstream("erase-keys", "--yes").output


def test_keys_of_parallel_shufflers_have_separate_periods(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    job = deployed(
        cluster,
        name="divided",
        epochs=5,
        instances=", instances: 2",
        aggregate="[aggregator-1.pub]",
        stages="[[stage-1.pub, stage-2.pub], stranger.pub]",
        rotate=", rotate: 2",
    )
    publish_up_to(cluster, job, 2)
    body = dpstream("erase-keys", "--yes", "--json").json
    assert {(each["party"], each["last_epoch"], each["expired"]) for each in body["keys"]} == {
        ("stage 1", 2, True),
        ("stage 1", 5, False),
        ("stage 2", 5, False),
        ("aggregate", 5, False),
    }
    assert private_keys() == ["aggregator-1", "aggregator-2", "stage-2", "stranger"]


def test_key_used_by_another_job_is_not_erased(
    dpstream: Commands, cluster: MemoryCluster, rotating: DeployedJob
) -> None:
    other = deployed(
        cluster,
        name="other",
        epochs=9,
        aggregate="aggregator-1.pub",
        stages="[stage-2.pub]",
        rotate="",
    )
    publish_up_to(cluster, rotating, 5)
    publish_up_to(cluster, other, 8)
    body = dpstream("erase-keys", "--json").json
    assert body["erased"] == []
    periods = {(Path(each["path"]).stem, each["job"]): each for each in body["keys"]}
    assert {key: each["expired"] for key, each in periods.items()} == {
        ("aggregator-1", "rotating"): False,
        ("aggregator-1", "other"): False,
        ("aggregator-2", "rotating"): True,
        ("stage-1", "rotating"): True,
        ("stage-2", "rotating"): False,
        ("stage-2", "other"): False,
    }
    assert (
        periods["stage-2", "other"]["last_epoch"],
        periods["stage-2", "other"]["published"],
    ) == (*(9, 8),)
    assert dpstream("erase-keys", "--yes").code == 0
    assert private_keys() == ["aggregator-1", "stage-2", "stranger"]


def test_keys_are_not_erased_when_a_job_is_unreadable(
    dpstream: Commands, cluster: MemoryCluster, rotating: DeployedJob
) -> None:
    publish_up_to(cluster, rotating, 5)
    cluster.append(JOBS_TOPIC, b"{}", key=b"newer")
    rejected = dpstream("erase-keys", "--yes")
    assert rejected.code != 0
    assert "an incompatible version of dpstream deployed (newer)" in rejected.errors
    assert private_keys() == sorted(NAMES)


def test_erased_key_file_is_overwritten(
    dpstream: Commands, cluster: MemoryCluster, rotating: DeployedJob, tmp_path: Path
) -> None:
    publish_up_to(cluster, rotating, 2)
    linked = tmp_path / "linked"
    linked.hardlink_to(Path("home/sealing-keys/aggregator-1.key"))
    assert dpstream("erase-keys", "--yes").code == 0
    assert not any(linked.read_bytes())
