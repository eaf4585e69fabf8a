"""Published estimates of a job, read while brokers stop and start."""

from __future__ import annotations

from contextlib import suppress

from kafka.errors import KafkaError

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster, ClusterError
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.topics.names import Role


class Publications:
    """Estimates of a job read so far, and publication times (seconds by broker time)."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._topic = job.topic(Role.ESTIMATES)
        self._first = FirstEstimates(job)
        self._position = 0
        self.published: dict[int, EstimateRecord] = {}
        self.published_at: dict[int, float] = {}

    def read(self) -> None:
        with suppress(KafkaError, ClusterError):
            for record in self._cluster.read(self._topic, 0, self._position):
                self._position = record.offset + 1
                estimate = self._first.apply(record.value)
                if estimate is not None:
                    self.published[estimate.epoch] = estimate
                    self.published_at[estimate.epoch] = record.timestamp / 1000
