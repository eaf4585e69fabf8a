"""Test that events of a real topic count once, however often their reader is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.memory import SimulatedCluster, seeded_generators
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.simulation.simulated_job import simulate
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.names import Role, TopicSettings
from tests.kafka.conftest import ROOT

USERS, EVENTS, EPOCHS, PARTITIONS = 2_000, 30_000, 24, 3
KILLS, SEED = 8, 7


@pytest.mark.verify
def test_producer_counts_each_event_once_although_it_is_killed_repeatedly(
    bootstrap_servers: str, job_name: str, tmp_path: Path
) -> None:
    events = write_events(tmp_path / "events.jsonl")
    user_list = tmp_path / "user list"
    user_list.write_text("".join(f"u{user}\n" for user in range(USERS)))
    topic = f"{job_name}-events"
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = deploy(cluster, parse_job(JOB.format(name=job_name)), deployment=bytes(16), now=0)
        put(cluster, topic, events)
        command = [
            *(sys.executable, "-m", "tests.kafka.topic_process", job_name, topic),
            *(bootstrap_servers, str(tmp_path / "state"), str(user_list), str(SEED), str(EPOCHS)),
        ]
        lines = run_killed(command)
        published = published_of(cluster, job)
    assert lines.count("done") == 1
    log = load_change_log(
        events, domain=job.domain, last_epoch=EPOCHS, users=[f"u{user}" for user in range(USERS)]
    )
    simulated = simulate(job, log, seed=SEED)
    assert [shown(record) for record in published] == [
        shown(record) for record in simulated.records
    ]


JOB = """
name: {name}
protocol: future_rand
parameters: {{epsilon: 2, max_changes: 4}}
epochs: {{count: 24}}
shuffle: {{minimum: 1}}
"""


def shown(record: EstimateRecord) -> tuple[object, ...]:
    return (
        record.epoch,
        record.window_status,
        record.estimate,
        record.contributors,
        record.population,
    )


def write_events(path: Path) -> Path:
    """Write unordered events, at most one per user and epoch."""
    chance = random.Random(20261123)
    pairs = chance.sample([(u, e) for u in range(USERS) for e in range(-2, EPOCHS + 3)], EVENTS)
    path.write_text(
        "".join(
            json.dumps({"user": f"u{user}", "epoch": epoch, "value": chance.randrange(2)}) + "\n"
            for user, epoch in pairs
        )
    )
    return path


def put(cluster: Cluster, topic: str, events: Path) -> None:
    cluster.create_topics([TopicSettings(topic, PARTITIONS, 1, {})])
    for number, line in enumerate(events.read_bytes().splitlines()):
        cluster.producer.send(topic, line, partition=number % PARTITIONS)
    cluster.producer.flush(60)


def run_killed(command: list[str]) -> list[str]:
    """Run a command, kill it repeatedly after some lines, and finally let it finish."""
    chance = random.Random(SEED)
    lines: list[str] = []
    for kill in [True] * KILLS + [False]:
        left = chance.randrange(1, 6) if kill else -1
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                left -= 1
                if not left:
                    process.send_signal(signal.SIGKILL)
        assert process.returncode == (-signal.SIGKILL if kill else 0), lines
    return lines


def published_of(cluster: Cluster, job: DeployedJob) -> list[EstimateRecord]:
    """Return the estimates from the producer's records, including duplicate records."""
    stages = SimulatedCluster(job, seeded_generators(SEED))
    for role in (Role.PRODUCERS, Role.REPORTS):
        for partition in range(len(job.start_offsets[role])):
            for record in cluster.read(job.topic(role), partition):
                stages.log.append(Append(role, partition, record.value))
    stages.settle()
    return stages.new_estimates()
