"""Readers of existing and future epochs in a deployment."""

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
# Margin for checkpoints, and for recent epochs whose records a publisher has repeated.
_REPEATED = 128
_CHECKPOINTS = 256

Read = TypeVar("Read")


class EstimateReader:
    """Published estimates of a deployment; the first record of an epoch counts.

    `last`, if given, is the number of latest existing epochs to read. After reading, `leaves_out`
    is True if earlier epochs exist.
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
        last = self._job.last_epoch
        return last is not None and last in self._first.epochs

    def read(self) -> Iterator[EstimateRecord]:
        """Yield unread estimates in the order of publication.

        Raises:
            ClusterError: If the topic no longer exists.
            KafkaError: If the broker does not respond. To continue, read again: nothing is lost.
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
        return follow(self.read, lambda: self.complete, notify, wait)


def follow(
    read: Callable[[], Iterable[Read]],
    complete: Callable[[], bool],
    notify: Callable[[str], None] = lambda message: None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Read]:
    """Yield unread items repeatedly until `complete`.

    If the broker is unavailable, waits for it, and calls `notify` at the start and end of the
    outage. `wait` sleeps for a number of seconds.
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
                notify(f"Kafka does not respond ({error}); retrying")
            away = True
        if not complete():
            wait(_POLL_SECONDS)
