"""Read the topics of a deployment from a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, TypeVar

from dpstream.pipeline.actions import (
    Action,
    EndOffsets,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
    carry_out,
    ends_of,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.topics.names import Role

_SLICE_BYTES: Final = 1 << 21
"""Bytes of record values after which a slice ends."""

Result = TypeVar("Result")


class TopicReader:
    def __init__(self, cluster: Cluster, job: DeployedJob, role: Role, partition: int = 0) -> None:
        self._cluster = cluster
        self._topic = job.topic(role)
        self._partition = partition
        self.position = job.start_offset(role, partition)

    def read(self) -> Iterator[LogRecord]:
        """Yield the records not read before, up to the current end.

        Raises ClusterError if the topic no longer exists. Raises KafkaError if the broker does not
        answer; reading can be repeated.
        """
        for record in self._cluster.read(self._topic, self._partition, self.position):
            self.position = record.offset + 1
            yield record


def read_registry(cluster: Cluster, job: DeployedJob) -> ProducerRegistry:
    registry = ProducerRegistry(job)
    for record in TopicReader(cluster, job, Role.PRODUCERS).read():
        registry.apply(record)
    return registry


def read_from(cluster: Cluster, job: DeployedJob, steps: Steps[Result]) -> Result:
    return carry_out(steps, partial(reply_from, cluster, job))


def reply_from(cluster: Cluster, job: DeployedJob, action: Action) -> object:
    match action:
        case EndOffsets():
            return ends_of(action, lambda role: cluster.end_offsets(job.topic(role)))
        case ReadRange(role, partition, start, stop):
            some, size = [], 0
            for record in cluster.read(job.topic(role), partition, start, stop):
                some.append(record)
                size += len(record.value)
                if size >= _SLICE_BYTES:
                    break
            return LogSlice(tuple(some), some[-1].offset + 1 if some else stop)
        case _:
            raise TypeError(f"action is {type(action).__name__}; expected EndOffsets or ReadRange")
