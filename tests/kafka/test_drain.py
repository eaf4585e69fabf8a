"""Test draining on a real broker: open windows are published, and later reports wait."""

from __future__ import annotations

import json
from pathlib import Path

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.topics.names import Role
from tests.support.commands import Commands

JOB = """
name: {name}
protocol: future_rand
parameters: {{epsilon: 2, max_changes: 2}}
epochs: {{count: 12}}
shuffle: {{minimum: 10, grace: 1h, producers: 2}}
topics: {{partitions: 2}}
"""


def published(dpstream: Commands, job_name: str) -> dict[int, int]:
    lines = dpstream("estimates", job_name, "--json").output.splitlines()
    return {record["epoch"]: record["contributors"] for record in map(json.loads, lines)}


def test_deploy_changes_retention_of_a_running_job(
    dpstream: Commands, bootstrap_servers: str, job_name: str, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB.format(name=job_name))
    assert dpstream("deploy", job_file, "--dry-run").code == 0
    with Cluster(Connection((bootstrap_servers,))) as cluster:

        def retention(role: Role) -> str:
            topic = f"{job_name}.{role}"
            return cluster.existing_topics([topic])[topic].configs["retention.ms"]

        assert not cluster.existing_topics([f"{job_name}.{Role.REPORTS}"])
        assert dpstream("deploy", job_file).code == 0
        before = find_deployed(cluster, job_name)
        kept = job_file.read_text().replace("partitions: 2", "partitions: 2, retention: 3d")
        job_file.write_text(kept.replace("grace: 1h", "grace: 2h"))
        dry = dpstream("deploy", job_file, "--dry-run", "--json").json
        assert dry["step"] == "change"
        assert retention(Role.REPORTS) == f"{7 * 86_400_000}"
        said = dpstream("deploy", job_file)
        assert said.code == 0, said.errors
        assert retention(Role.REPORTS) == retention(Role.SHUFFLED) == f"{3 * 86_400_000}"
        assert retention(Role.DEAD_LETTERS) == f"{3 * 86_400_000}"
        assert retention(Role.MANIFESTS) == "-1"
        after = find_deployed(cluster, job_name)
        assert (after.deployment, after.shuffle.grace) == (before.deployment, 7200.0)
        found = cluster.existing_topics([f"{job_name}.{Role.REPORTS}"])
        (topic,) = found.values()
        assert (topic.partitions, topic.replication) == (2, 1)
        assert topic.configs["message.timestamp.type"] == "LogAppendTime"
