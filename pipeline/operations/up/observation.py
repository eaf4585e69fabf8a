"""What can be seen of a job while it runs: its estimates, its windows, its workers' heartbeats."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import CLIENT_ID, Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.results.smoothing import SmoothedHorizon, smoothed_horizons
from dpstream.topics.names import Role

_OBSERVED = (Role.ESTIMATES, Role.SHUFFLED, Role.STATUS)
_POLL_MILLISECONDS = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of one of the job's topics."""

    role: Role
    value: bytes


def begin(connection: Connection, job: Job, deployment: bytes, noise_key: Path) -> DeployedJob:
    """Deploy a job in place of the one of its name.

    Args:
        connection: the cluster.
        job: what to deploy.
        deployment: 16 random bytes.
        noise_key: where to make the job's noise key, if it needs one.
    """
    with Cluster(connection) as cluster:
        return deploy(
            cluster,
            job,
            deployment=deployment,
            now=time.time_ns() // 1_000_000,
            replace=True,
            noise_key=noise_key,
        )


def look_back(
    connection: Connection, job: DeployedJob, last_epoch: int
) -> dict[int, SmoothedHorizon]:
    """The smoothed estimates of all epochs to a published one, as `smoothed_horizons`."""
    with Cluster(connection) as cluster:
        return read_from(cluster, job, smoothed_horizons(job, last_epoch))


def observe(connection: Connection, job: DeployedJob) -> Generator[list[Seen], None, None]:
    """The records of a deployment, as they come and without end.

    A list is empty when nothing has come for a while. A broker that is away is waited for.
    """
    partitions = {
        TopicPartition(job.topic(role), partition): role
        for role in _OBSERVED
        for partition in range(len(job.start_offsets[role]))
    }
    consumer = KafkaConsumer(
        client_id=CLIENT_ID, enable_auto_commit=False, **connection.kafka_python()
    )
    try:
        consumer.assign(list(partitions))
        for partition, role in partitions.items():
            consumer.seek(partition, job.start_offset(role, partition.partition))
        while True:
            polled = consumer.poll(_POLL_MILLISECONDS)
            yield [
                Seen(partitions[partition], record.value)
                for partition, records in polled.items()
                for record in records
                if record.value is not None
            ]
    finally:
        consumer.close()
