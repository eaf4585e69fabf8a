"""Producers registered for a deployment, read from the topic of registrations."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.topics.frames import INTEGER_MAX, CodecError
from dpstream.topics.manifests import PRODUCERS_MAX, PRODUCERS_OF_INSTANCES_MAX
from dpstream.topics.records import Deregistration, Drain, Registration, decode_producer_record


@dataclass(slots=True)
class EnrolledProducer:
    """A registered producer; `index` is its position in the order of registration."""

    index: int
    name: str
    enrollment: bytes
    first_epoch: int
    last_epoch: int | None = None

    def reports_at(self, epoch: int) -> bool:
        return self.first_epoch <= epoch and (self.last_epoch is None or epoch <= self.last_epoch)


class ProducerRegistry:
    """Registered producers, built from the records of ``<job>.producers`` in log order.

    The first registration of a name counts. Records from other deployments, unreadable records, and
    drains of partitions that the job does not have are skipped. So are registrations that exceed
    the capacity of a manifest, or start at an epoch outside the job.

    Attributes:
        drains: Offset up to which an operator has drained each partition of the reports.
        version: Number that increases with every record that might change the registry.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._producers: list[EnrolledProducer] = []
        self._by_enrollment: dict[bytes, EnrolledProducer] = {}
        self._names: set[str] = set()
        self._first_epochs = array("q")
        self._last_epochs = array("q")
        self._first_epoch: int | None = None
        self.drains: dict[int, int] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[EnrolledProducer]:
        return iter(self._producers)

    def __getitem__(self, index: int) -> EnrolledProducer:
        return self._producers[index]

    @property
    def first_epochs(self) -> NDArray[np.int64]:
        return np.array(self._first_epochs, np.int64)

    def reporting(self, epoch: int) -> NDArray[np.bool_]:
        last_epochs = np.array(self._last_epochs, np.int64)
        return (self.first_epochs <= epoch) & (epoch <= last_epochs)

    def find(self, enrollment: bytes) -> EnrolledProducer | None:
        return self._by_enrollment.get(enrollment)

    def find_name(self, name: str) -> EnrolledProducer | None:
        return next((producer for producer in self._producers if producer.name == name), None)

    @property
    def first_epoch(self) -> int:
        return self._first_epoch or 1

    def apply(self, producer_record: LogRecord) -> None:
        try:
            record = decode_producer_record(producer_record.value)
        except CodecError:
            return
        if record.deployment != self._job.deployment:
            return
        self.version += 1
        if isinstance(record, Registration):
            self._register(record)
        elif isinstance(record, Drain):
            self._drain(record)
        else:
            self._deregistration(record)

    def _register(self, record: Registration) -> None:
        if record.name in self._names or record.enrollment in self._by_enrollment:
            return
        alone = self._job.shuffle.instances == 1
        if len(self._producers) == (PRODUCERS_MAX if alone else PRODUCERS_OF_INSTANCES_MAX):
            return
        if epoch_problem(self._job, record.first_epoch) is not None:
            return
        producer = EnrolledProducer(
            len(self._producers), record.name, record.enrollment, record.first_epoch
        )
        self._first_epoch = min(record.first_epoch, self._first_epoch or record.first_epoch)
        self._names.add(record.name)
        self._producers.append(producer)
        self._first_epochs.append(record.first_epoch)
        self._last_epochs.append(INTEGER_MAX)
        self._by_enrollment[record.enrollment] = producer

    def _drain(self, record: Drain) -> None:
        if record.partition < self._job.topics.partitions:
            self.drains[record.partition] = max(record.end, self.drains.get(record.partition, 0))

    def _deregistration(self, record: Deregistration) -> None:
        producer = self._by_enrollment.get(record.enrollment)
        if producer is not None and producer.last_epoch is None:
            producer.last_epoch = self._last_epochs[producer.index] = record.last_epoch
