"""List the producers registered with a deployment, and retire producers."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import EnrolledProducer
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.kafka.topic_reader import TopicReader, read_registry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.names import Role
from dpstream.topics.records import Deregistration


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """A registered producer, with its number of devices in `last_in`, its latest epoch.

    `last_epoch` is None until the producer has left. `state` is "reporting", "missing" (absent, and
    windows no longer wait for it) or "left".
    """

    name: str
    first_epoch: int
    last_epoch: int | None
    last_in: int | None
    devices: int
    state: str


class Registrations:
    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self.registry = read_registry(cluster, job)
        self._decisions = DecisionLog(job)
        self._decisions.apply_all(TopicReader(cluster, job, Role.MANIFESTS).read())

    def statuses(self) -> list[ProducerStatus]:
        return [self._status(producer) for producer in self.registry]

    def retire(self, name: str) -> int:
        """End a producer permanently after the last finalized epoch, and return that epoch.

        Later epochs do not wait for the producer, and its records for these epochs are rejected.
        Raises DeploymentError if the producer is unknown or has already left.
        """
        producer = self.registry.find_name(name)
        if producer is None:
            known = ", ".join(producer.name for producer in self.registry) or "none"
            raise DeploymentError(
                f"no producer {name} is registered with job {self._job.name}; registered: {known}"
            )
        if producer.last_epoch is not None:
            raise DeploymentError(
                f"producer {name} has already left, after epoch {producer.last_epoch}"
            )
        last_epoch = self._decisions.decided.highest
        record = Deregistration(self._job.deployment, producer.enrollment, last_epoch)
        self._cluster.append(self._job.topic(Role.PRODUCERS), record.to_bytes())
        return last_epoch

    def _status(self, producer: EnrolledProducer) -> ProducerStatus:
        next_epoch = self._decisions.decided.highest + 1
        if producer.last_epoch is not None:
            state = "left"
        elif self._decisions.missed(producer.index, producer.first_epoch, next_epoch):
            state = "missing"
        else:
            state = "reporting"
        return ProducerStatus(
            name=producer.name,
            first_epoch=producer.first_epoch,
            last_epoch=producer.last_epoch,
            last_in=self._decisions.last_in(producer.index) or None,
            devices=self._decisions.population(producer.index),
            state=state,
        )
