"""Reads what a deployment says of its epochs: of those there are, and of those to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from kafka.errors import KafkaError

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.pipeline.stages.published_epochs import published_before
from dpstream.topics.names import Role

_POLL_SECONDS = 0.25
# Records of epochs that a publisher has repeated, of the latest ones, and checkpoints.
_REPEATED = 128
_CHECKPOINTS = 256

Read = TypeVar("Read")


class EstimateReader:
    """The published estimates of a deployment; the first record of an epoch is the estimate.

    Args:
        cluster: where it runs.
        job: as deployed.
        last: so many of the epochs that there are are read at most, the latest; None: all.

    Attributes:
        leaves_out: whether there are earlier ones than those read; known once they are.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob, last: int | None = None) -> None:
        self._cluster = cluster
        self._job = job
        self._last = last
        self._first = FirstEstimates(job)
        self._log = TopicReader(cluster, job, Role.ESTIMATES)
        self.leaves_out = False

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
        if self._last is not None:
            latest = self._read_last(self._last)
            self._last = None
            yield from latest
        for record in self._log.read():
            estimate = self._first.apply(record.value)
            if estimate is not None:
                yield estimate

    def _read_last(self, most: int) -> list[EstimateRecord]:
        begin = self._job.start_offset(Role.ESTIMATES)
        (end,) = self._cluster.end_offsets(self._job.topic(Role.ESTIMATES))
        self._log.position = start = max(begin, end - most - most // _CHECKPOINTS - _REPEATED)
        records = list(self._log.read())
        self._first = FirstEstimates(self._job, published_before(self._job, records))
        applied = (self._first.apply(record.value) for record in records)
        found = [estimate for estimate in applied if estimate is not None]
        self.leaves_out = start > begin or len(found) > most
        return found[-most:]

    def follow(
        self,
        notify: Callable[[str], None] = lambda message: None,
        wait: Callable[[float], None] = time.sleep,
    ) -> Iterator[EstimateRecord]:
        """What has been published and what will be, until the last epoch of a job that has one.

        A broker that is away is waited for; `notify` is told once, and once when it is back.
        """
        return follow(self.read, lambda: self.complete, notify, wait)


def follow(
    read: Callable[[], Iterable[Read]],
    complete: Callable[[], bool],
    notify: Callable[[str], None] = lambda message: None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Read]:
    """Read again and again until it is complete.

    A broker that is away is waited for; `notify` is told once, and once when it is back.

    Args:
        read: what is there and was not read before.
        complete: whether everything has been.
        notify: is told what there is to know.
        wait: for so many seconds.
    """
    away = False
    while not complete():
        try:
            yield from read()
            if away:
                notify("Kafka is back")
            away = False
        except KafkaError as error:
            if not away:
                notify(f"Kafka does not answer ({error}); waiting for it")
            away = True
        if not complete():
            wait(_POLL_SECONDS)
