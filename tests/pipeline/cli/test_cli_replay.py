"""Test ``dpstream replay`` on the command line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.replays import LiveRun, example_job, owners, results_of, settle

EPOCHS = 7


@pytest.fixture
def run() -> LiveRun:
    example = PROTOCOLS["future_rand"].examples[1]
    return LiveRun.of(example_job("future_rand", example), epochs=EPOCHS, small={3})


@pytest.fixture
def cluster(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    monkeypatch.setenv("COLUMNS", "80")
    cluster = use_memory_cluster(monkeypatch)
    run.write(cluster)
    return cluster


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], cluster: MemoryCluster) -> Commands:
    return Commands(capsys)


def log_of(cluster: MemoryCluster, job: DeployedJob) -> MemoryLog:
    log = MemoryLog()
    for role, topic in job.topic_settings().items():
        for partition in range(topic.partitions):
            for record in cluster.read(topic.name, partition):
                log.append(Append(role, partition, record.value))
    return log


def test_replay_from_topics_is_processed_by_workers(
    dpstream: Commands, cluster: MemoryCluster, run: LiveRun
) -> None:
    result = dpstream("replay", "live", "--partitions", 3, "--no-workers")
    assert result.code == 0, result.errors
    assert "without a privacy charge" in result.errors
    assert "7 epochs of live are written as live-replay" in result.output
    assert "dpstream run aggregate live-replay" in result.output
    assert result.output.count("\n") == 1, "the end is a line"
    job = find_deployed(cluster, "live-replay")  # type: ignore[arg-type]
    assert job.topics.partitions == 3
    log = log_of(cluster, job)
    settle(owners(job, log, build_stage(job, "aggregate", Environment())))
    settle(owners(job, log, PublishStage(job)))
    assert results_of(job, log) == run.results
    for value in log.values(Role.ESTIMATES):
        cluster.append(job.topic(Role.ESTIMATES), value)
    for value in log.values(Role.PARTIALS):
        cluster.append(job.topic(Role.PARTIALS), value)
    assert dpstream("diff", "live", "live-replay").code == 0

    before = ends(cluster)
    again = dpstream("replay", "live", "--partitions", 3, "--no-workers", "--json")
    assert again.code == 0, again.errors
    assert "continues" in again.errors
    assert again.json["deployment"] == job.deployment.hex()
    assert ends(cluster) == before


def ends(cluster: MemoryCluster) -> Counter[str]:
    return Counter({topic: sum(cluster.end_offsets(topic)) for topic in cluster.topics()})


def test_replay_of_a_damaged_recording_deploys_nothing(
    dpstream: Commands, cluster: MemoryCluster, run: LiveRun, tmp_path: Path
) -> None:
    run.record(tmp_path / "recorded")
    (windows,) = (tmp_path / "recorded").glob("windows-*")
    windows.write_bytes(windows.read_bytes()[:-1])
    result = dpstream("replay", tmp_path / "recorded", "--no-workers")
    assert (result.code, result.output) == (1, "")
    assert f"{windows} is truncated" in result.errors
    assert "live-replay.shuffled" not in cluster.topics()
