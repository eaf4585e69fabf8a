"""Reads the estimates of a deployment: those there are, and those to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kafka.errors import KafkaError

from pipeline.cluster import Cluster
from pipeline.deployed_job import DeployedJob
from pipeline.estimate_records import EstimateRecord, FirstEstimates
from topics.names import Role

_POLL_SECONDS = 0.25


class EstimateReader:
    """The published estimates of a deployment; the first record of an epoch is the estimate."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._first = FirstEstimates(job.deployment)
        self._position = job.start_offset(Role.ESTIMATES)

    @property
    def complete(self) -> bool:
        """Whether the last epoch of the job has been read."""
        last = self._job.last_epoch
        return last is not None and last in self._first.epochs

    def read(self) -> Iterator[EstimateRecord]:
        """What has been published and was not read before, in the order of publication.

        Raises:
            ClusterError: the topic is gone.
            KafkaError: the broker does not answer; nothing is lost, read again.
        """
        topic = self._job.topic(Role.ESTIMATES)
        for record in self._cluster.read(topic, start=self._position):
            self._position = record.offset + 1
            estimate = self._first.apply(record.value)
            if estimate is not None:
                yield estimate

    def follow(
        self,
        notify: Callable[[str], None] = lambda message: None,
        wait: Callable[[float], None] = time.sleep,
    ) -> Iterator[EstimateRecord]:
        """What has been published and what will be, until the last epoch of a job that has one.

        A broker that is away is waited for; `notify` is told once, and once when it is back.
        """
        away = False
        while not self.complete:
            try:
                yield from self.read()
                if away:
                    notify("Kafka is back")
                away = False
            except KafkaError as error:
                if not away:
                    notify(f"Kafka does not answer ({error}); waiting for it")
                away = True
            wait(_POLL_SECONDS)
