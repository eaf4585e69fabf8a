"""Test that topics created or changed by other programs are used, or rejected with a fix."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.kafka.many_topics import ManyTopics
from dpstream.pipeline.kafka.stored_state import ContradictionError
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.drains import start_drain
from dpstream.pipeline.operations.status.collection import JobWatch, gather_status
from dpstream.pipeline.operations.status.lags import look_ahead
from dpstream.topics.names import Role
from tests.support.new_jobs import new_job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(**cluster.connection.kafka_python())
    yield client
    client.close()


@pytest.fixture
def job(job_name: str) -> Job:
    return new_job(
        job_name, "future_rand", {"epsilon": 1.0, "max_changes": 2}, count=8, partitions=2
    )


def rejection_of_worker(cluster: Cluster, job: Job, stage: str, folder: Path) -> str:
    """Start a worker that exits by itself, and return the line with the reason."""
    (servers,) = cluster.connection.bootstrap_servers
    worker = subprocess.run(
        [sys.executable, "-m", "dpstream.pipeline.cli", "run", stage, job.name, "--name", "w1"],
        cwd=ROOT,
        env={
            **os.environ,
            "DPSTREAM_BOOTSTRAP_SERVERS": servers,
            "DPSTREAM_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert worker.returncode == 1
    return worker.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("role", "partitions", "configs", "said"),
    [
        (Role.REPORTS, 3, {}, "Undeploy the job with --delete-topics, or change the job file"),
        (
            Role.REPORTS,
            2,
            {"cleanup.policy": "compact"},
            "cleanup.policy compact; expected delete",
        ),
        (Role.STATUS, 1, {"cleanup.policy": "delete"}, "cleanup.policy delete; expected compact"),
        (Role.PARTIALS, 1, {"max.message.bytes": "1000"}, "max.message.bytes 1000; expected"),
        (Role.MANIFESTS, 1, {"compression.type": "zstd"}, "compression.type zstd; expected"),
    ],
)
def test_unsafe_topic_settings_are_rejected(
    cluster: Cluster,
    admin: KafkaAdminClient,
    job: Job,
    role: Role,
    partitions: int,
    configs: dict[str, str],
    said: str,
) -> None:
    admin.create_topics([NewTopic(job.topic(role), partitions, 1, topic_configs=configs)])
    with pytest.raises(ClusterError, match=said):
        deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    assert job.name not in read_jobs(cluster).jobs
    assert [name for name in cluster.topics() if name.startswith(job.name)] == [job.topic(role)]


def test_suitable_existing_topic_is_used(
    cluster: Cluster, admin: KafkaAdminClient, job: Job
) -> None:
    configs = {"max.message.bytes": str(1 << 24), "compression.type": "producer"}
    admin.create_topics([NewTopic(job.topic(Role.REPORTS), 2, 1, topic_configs=configs)])
    deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    assert job.name in read_jobs(cluster).jobs


def test_worker_and_status_command_report_records_lost_to_retention(
    cluster: Cluster, admin: KafkaAdminClient, job: Job, tmp_path: Path
) -> None:
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    with open_producer(cluster, deployed, tmp_path / "gateway", name="gateway") as producer:
        producer.enroll(["ann"])
        for epoch in range(1, 5):
            producer.close(epoch)
    admin.delete_records({TopicPartition(job.topic(Role.REPORTS), 1): 1})
    said = rejection_of_worker(cluster, job, "shuffle", tmp_path)
    assert f"{job.topic(Role.REPORTS)}, partition 1: offsets 0 to 0 are needed but were" in said
    assert "epoch 1 and later epochs of its partition cannot be released" in said
    assert "dpstream deploy JOBFILE --replace" in said
    status = gather_status(cluster, deployed, now=0)
    assert status.stages[0].deleted == (1,)
    assert "Stage shuffle lost records: unprocessed data in partition 1" in (status.issues[0])


def test_status_command_reports_added_partitions_and_deleted_topics(
    cluster: Cluster, admin: KafkaAdminClient, job: Job
) -> None:
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    watch, reports = JobWatch(cluster, deployed), job.topic(Role.REPORTS)
    assert watch.status(now=0).topics == ()
    admin.create_partitions({reports: 5})
    assert any("has 5 partitions; the job uses the first 2" in n for n in watch.status(now=0).notes)
    with Cluster(cluster.connection) as other:
        other.producer.send(reports, b"stray", partition=4).get(30)
    status = watch.status(now=0)
    assert (status.stages[0].lag, status.topics[0].unexpected_records) == (0, True)
    assert "Epoch e belongs in partition e mod 2" in status.issues[0]
    assert start_drain(cluster, deployed, now=0) == {0: 0, 1: 0}

    admin.delete_topics([reports, job.topic(Role.MANIFESTS)])
    issues = " ".join(watch.status(now=0).issues)
    assert f"opic {reports} no longer exists" in issues
    assert f"opic {job.topic(Role.MANIFESTS)} no longer exists" in issues
    assert f"dpstream undeploy {job.name} --delete-topics" in issues
    admin.create_topics([NewTopic(reports, 1, 1)])
    assert f"Topic {reports} has 1 partitions, but was deployed with 2" in " ".join(
        watch.status(now=0).issues
    )


@pytest.mark.parametrize(
    ("role", "stage"), [(Role.REPORTS, "shuffle"), (Role.SHUFFLED, "aggregate")]
)
def test_recreated_topic_is_rejected_by_all_workers(
    cluster: Cluster, admin: KafkaAdminClient, job: Job, tmp_path: Path, role: Role, stage: str
) -> None:
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    assert gather_status(cluster, deployed, now=0).contradictions == ()
    admin.delete_topics([job.topic(role)])
    deadline = time.monotonic() + 30.0
    while job.topic(role) in admin.list_topics():
        assert time.monotonic() < deadline, "the topic still exists"
    cluster.create_topics([job.topic_settings()[role]])
    found = f"topic {job.topic(role)} was deleted and recreated"
    assert found in rejection_of_worker(cluster, job, stage, tmp_path)
    (said,) = gather_status(cluster, deployed, now=0).contradictions
    assert found in said
    with (
        pytest.raises(ContradictionError, match=found) if role is Role.REPORTS else nullcontext(),
        open_producer(cluster, deployed, tmp_path / "gateway", name="gateway"),
    ):
        pass


def test_status_command_reports_changed_topic_settings(cluster: Cluster, job: Job) -> None:
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    changed = {
        job.topic(Role.REPORTS): {"cleanup.policy": "compact", "max.message.bytes": "300"},
        job.topic(Role.MANIFESTS): {"retention.ms": "3600000"},
    }
    cluster.alter_topics(changed)
    found: tuple[str, ...] = ()
    deadline = time.monotonic() + 30.0
    # Brokers apply changed settings after a delay.
    while len(found) < 3 and time.monotonic() < deadline:
        found = gather_status(cluster, deployed, now=0).contradictions
    with ManyTopics(cluster.connection) as many:
        look_ahead(many, [deployed])
        assert gather_status(many, deployed, now=0).contradictions == found
    assert {sentence.partition("; expected")[0] for sentence in found} == {
        f"topic {topic} has {key} {value}"
        for topic, configs in changed.items()
        for key, value in configs.items()
    }


def test_producer_keeps_unsent_reports_and_fails_if_a_topic_was_deleted(
    cluster: Cluster, admin: KafkaAdminClient, job: Job, tmp_path: Path
) -> None:
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    with open_producer(cluster, deployed, tmp_path, name="gateway") as producer:
        producer.enroll(["ann"])
        producer.close(1)
        admin.delete_topics([deployed.topic(Role.REPORTS)])
        with pytest.raises(
            ClusterError, match=r"\.reports no longer exists: .* Unsent reports remain"
        ):
            producer.close(2)
        assert producer.closed_epoch == 2
        assert list(producer.store.outbox())
