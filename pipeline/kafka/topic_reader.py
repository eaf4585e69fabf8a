"""Reads what the topics of a deployment hold on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.topics.names import Role


class TopicReader:
    """Reads a partition from where a deployment begins, and goes on where it last stopped.

    Attributes:
        position: the offset at which it is read on.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob, role: Role, partition: int = 0) -> None:
        self._cluster = cluster
        self._topic = job.topic(role)
        self._partition = partition
        self.position = job.start_offset(role, partition)

    def read(self) -> Iterator[LogRecord]:
        """What was not read before, up to the present end.

        Raises:
            ClusterError: the topic is gone.
            KafkaError: the broker does not answer; nothing is lost, read again.
        """
        for record in self._cluster.read(self._topic, self._partition, self.position):
            self.position = record.offset + 1
            yield record


def read_roster(cluster: Cluster, job: DeployedJob) -> Roster:
    """Who has registered with a deployment by now."""
    roster = Roster(job)
    for record in TopicReader(cluster, job, Role.PRODUCERS).read():
        roster.apply(record)
    return roster
