"""``dpstream replay`` on the command line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import Append, LogRecord, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.recording.replay.on_cluster import ClusterReader
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
    """A cluster on which the job has run."""
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


def test_a_replay_from_topics_and_what_workers_make_of_it(
    dpstream: Commands, cluster: MemoryCluster, run: LiveRun
) -> None:
    said = dpstream("replay", "live", "--partitions", 3, "--no-workers")
    assert said.code == 0, said.errors
    assert "nobody is charged for it" in said.errors
    assert "7 epochs of live are written as live-replay" in said.output
    assert "dpstream run aggregate live-replay" in said.output
    assert said.output.count("\n") == 1, "the end is a line"
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
    assert "goes on" in again.errors
    assert again.json["deployment"] == job.deployment.hex()
    assert ends(cluster) == before


def ends(cluster: MemoryCluster) -> Counter[str]:
    return Counter({topic: sum(cluster.end_offsets(topic)) for topic in cluster.topics()})


def test_a_dry_run_says_what_would_be_read_and_written_and_does_nothing(
    dpstream: Commands, cluster: MemoryCluster
) -> None:
    before = ends(cluster)
    said = dpstream("replay", "live", "--as", "again", "--from-epoch", 6, "--dry-run")
    assert said.code == 0, said.errors
    assert "5 to 7" in said.output
    assert "again.shuffled" in said.output
    assert "it would cost no epsilon" in said.output
    planned = dpstream(
        "replay", "live", "--as", "again", "--from-epoch", 6, "--dry-run", "--json"
    ).json
    assert planned["epsilon"] == 0
    assert planned["writes"]["job"] == "again"
    reads = planned["reads"]
    assert (reads["first_epoch"], reads["windows_from"], reads["last_epoch"]) == (5, 6, EPOCHS)
    assert (reads["windows"], reads["partials"], reads["records"]) == (2, 1, 2)
    assert reads["bytes"] > 0
    assert planned["goes_on"] is None
    assert ends(cluster) == before


def test_in_memory_a_recording_needs_no_cluster(
    dpstream: Commands, run: LiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.record(tmp_path / "recorded")
    live = dpstream("estimates", "live", "--format", "csv").output

    def nobody(*arguments: object, **options: object) -> None:
        raise AssertionError("a cluster was asked for")

    monkeypatch.setattr("dpstream.pipeline.cli.cluster_and_jobs.connection_of", nobody)
    said = dpstream("replay", tmp_path / "recorded", "--in-memory", "--format", "csv")
    assert said.code == 0, said.errors
    assert said.output == live
    by_index = tmp_path / "recorded" / "recording.json"
    assert dpstream("replay", by_index, "--in-memory", "--format", "csv").output == live
    fast = dpstream(
        "replay", tmp_path / "recorded", "--in-memory", "--format", "csv", "--speed", "x1000000"
    )
    assert fast.output == live


def test_a_damaged_recording_deploys_nothing(
    dpstream: Commands, cluster: MemoryCluster, run: LiveRun, tmp_path: Path
) -> None:
    run.record(tmp_path / "recorded")
    (windows,) = (tmp_path / "recorded").glob("windows-*")
    windows.write_bytes(windows.read_bytes()[:-1])
    said = dpstream("replay", tmp_path / "recorded", "--no-workers")
    assert (said.code, said.output) == (1, "")
    assert f"{windows} is cut short" in said.errors
    assert "live-replay.shuffled" not in cluster.topics()


@settings(max_examples=40, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 120)), max_size=20),
    ahead=st.integers(1, 40),
    at_once=st.integers(1, 40),
    asked_for_end=st.booleans(),
)
def test_reading_ahead_gives_what_reading_gives(
    ranges: list[tuple[int, int]], ahead: int, at_once: int, asked_for_end: bool
) -> None:
    job = deploy_job(
        example_job("future_rand", PROTOCOLS["future_rand"].examples[0]), deployed_at=0
    )
    cluster = MemoryCluster(partitions={job.topic(Role.SHUFFLED): 2})
    values = [str(number).encode() for number in range(100)]
    for value in values:
        cluster.send(job.topic(Role.SHUFFLED), value, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpstream.pipeline.recording.replay.on_cluster._RECORDS_AHEAD", ahead)
        patch.setattr("dpstream.pipeline.kafka.topic_reader._SLICE_BYTES", at_once)
        read = ClusterReader(cast(Cluster, cluster), job)
        if asked_for_end:
            assert read(end_offset(Role.SHUFFLED, 1)) == 100
        for start, length in ranges:
            found: list[LogRecord] = []
            stop = min(start + length, 100)
            read(scan(Role.SHUFFLED, 1, start, stop, found.append))
            assert [record.value for record in found] == values[start:stop]
