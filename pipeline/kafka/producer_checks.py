"""Check before a producer draws: its registration counts, and its state is the latest.

A state is an old copy if the producer has sent an epoch that the state does not know. Sent epochs
are in the reports and, once finalized, in the manifests. Neither is read completely:

* A manifest counts only if its epoch is within `EPOCHS_AHEAD` of the oldest unfinalized one.
  Manifests of epochs after the last drawn one therefore follow those of all epochs more than
  `EPOCHS_AHEAD` earlier, which bounds their offset from below.
* Records that an earlier start of this state has checked are not read again: the state still knows
  the epochs it knew then.
* Records older than the state folder hold nothing of its producer, whose enrollment ID was drawn
  with the folder. The first start reads the producer registry alone.
* Only the last few MiB of reports are read, of all partitions together. They come from all
  producers, and of ten thousand they may cover part of one epoch. They reveal an old copy only if
  the epoch is not finalized yet and was among the last sent. A moment later, a manifest reveals it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.kafka.cluster import AccessError, Cluster
from dpstream.pipeline.kafka.stored_state import ContradictionError, records_lost
from dpstream.pipeline.kafka.topic_reader import read_registry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.batches import decode_punctuation
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.manifests import read_head
from dpstream.topics.names import Role

# Records, and their bytes, to read back from the ends of all partitions together.
_REPORTS_READ = 20_000
_REPORT_BYTES_READ = 16 << 20
# First chunk of a partition, in records; chunks double until the limits are reached.
_FIRST_REPORTS = 64

LogPartition = tuple[Role, int]


def ends_before(cluster: Cluster, job: DeployedJob, state: Path) -> Mapping[LogPartition, int]:
    """Return the end offsets of the logs that a start reads; nothing if the state exists.

    Call it before opening the producer: records below these offsets precede its registration.
    `state` is the present or future file of the producer's state.
    """
    if state.exists():
        return {}
    try:
        ends = {
            (role, partition): end
            for role in (Role.MANIFESTS, Role.REPORTS)
            for partition, end in enumerate(cluster.end_offsets(job.topic(role)))
        }
    except AccessError:
        return {}
    return {} if state.exists() else ends


def check_registered(
    cluster: Cluster,
    producer: Producer,
    notify: Callable[[str], None] = lambda sentence: None,
    before: Mapping[LogPartition, int] | None = None,
) -> None:
    """Check that a producer's registration counts and its state is the latest, before it draws.

    `before` is the result of `ends_before`; `notify` reports what cannot be checked.

    Raises:
        ContradictionError: A topic ends before acknowledged records.
        ProducerError: Another producer registered first under its name, so that all its records
            would be rejected; most likely its state directory was lost or is another one. Or it has
            sent epochs that its directory does not know: the directory is an old copy.
    """
    job = producer.job
    _check_ends(cluster, producer)
    enrolled = read_registry(cluster, job).find(producer.enrollment)
    if enrolled is None:
        raise ProducerError(
            f"producer {producer.name} of job {job.name} is already registered with another "
            "state directory: give that directory, or another --name"
        )
    read = _ReadBefore(cluster, producer, before or {})
    latest = _latest_decided(read, cluster, producer, enrolled.index)
    try:
        latest = max(latest, _latest_sent(read, cluster, producer))
    except AccessError:
        # Its reports are among those of others, which no producer needs to see.
        notify(
            f"note: unfinalized epochs that producer {producer.name} sent cannot be compared "
            "with its state directory, because it may not read the reports: never give it a "
            "copy of an earlier state"
        )
    if latest > producer.closed_epoch:
        raise ProducerError(
            f"the state directory of producer {producer.name} of job {job.name} is an old "
            f"copy: it ends with epoch {producer.closed_epoch}, but epoch {latest} was sent. "
            "Drawing a second time would disclose more about devices than guaranteed. Give the "
            f"directory used last, or retire this producer: 'dpstream producers {job.name} "
            f"--retire {producer.name}'. Never restore a copy of device state"
        )
    read.keep()


def _check_ends(cluster: Cluster, producer: Producer) -> None:
    job = producer.job
    for role in job.route.reports:
        for partition, end in enumerate(
            cluster.end_offsets(job.topic(role))[: job.topics.partitions]
        ):
            known = producer.store.acknowledged(role, partition)
            if end < known:
                raise ContradictionError(
                    f"reports of producer {producer.name} in {job.topic(role)}, partition "
                    f"{partition}, were acknowledged up to offset {known}, but the partition "
                    f"ends at {end}: {records_lost(job.name)}"
                )


class _ReadBefore:
    """Read partitions on from where an earlier start of the same state has checked them.

    `before` are offsets below which there is nothing of this producer.
    """

    def __init__(
        self, cluster: Cluster, producer: Producer, before: Mapping[LogPartition, int]
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._before = before
        self._positions: dict[str, int] = {}

    def begin(self, role: Role, partition: int) -> int:
        known = self._producer.store.fact(_fact(role, partition))
        begun = self._before.get(
            (role, partition), self._producer.job.start_offset(role, partition)
        )
        return max(begun, known if isinstance(known, int) else 0)

    def onward(self, role: Role, partition: int, start: int) -> Iterator[LogRecord]:
        topic = self._producer.job.topic(role)
        position = max(start, self.begin(role, partition))
        for record in self._cluster.read(topic, partition, position):
            position = record.offset + 1
            yield record
        self._positions[_fact(role, partition)] = position

    def backward(
        self, role: Role, partition: int, end: int, records: int, size: int
    ) -> Iterator[LogRecord]:
        """Yield about `size` bytes of records below `end`, in growing chunks, the last first."""
        topic, begin = self._producer.job.topic(role), self.begin(role, partition)
        begin = max(begin, end - records)
        stop, piece, read = end, _FIRST_REPORTS, 0
        while stop > begin and read < size:
            start = max(begin, stop - piece)
            for record in self._cluster.read(topic, partition, start, stop):
                read += len(record.value)
                yield record
            stop, piece = start, 2 * piece
        self._positions[_fact(role, partition)] = max(begin, end)

    def keep(self) -> None:
        """Record that all records read are checked; on a full disk they are read again."""
        with suppress(sqlite3.Error):
            for fact, position in self._positions.items():
                if self._producer.store.fact(fact) != position:
                    self._producer.store.set_fact(fact, position)


def _fact(role: Role, partition: int) -> str:
    return f"checked_{role.value}_{partition}"


def _latest_decided(read: _ReadBefore, cluster: Cluster, producer: Producer, index: int) -> int:
    """Return the last epoch beyond those drawn whose window includes the producer, or 0."""
    job, closed, latest = producer.job, producer.closed_epoch, 0
    for record in read.onward(Role.MANIFESTS, 0, _first_beyond(cluster, job, closed)):
        with suppress(CodecError):
            head = read_head(record.value)
            own = (head.deployment, head.fingerprint) == (job.deployment, job.fingerprint)
            if own and head.epoch > closed and head.has(index):
                latest = max(latest, head.epoch)
    return latest


def _first_beyond(cluster: Cluster, job: DeployedJob, closed: int) -> int:
    """Return an offset below which no manifest of an epoch beyond `closed` counts."""
    start = job.start_offset(Role.MANIFESTS)
    if closed <= EPOCHS_AHEAD:
        return start
    decisions = DecisionLog(job)
    for record in cluster.read(job.topic(Role.MANIFESTS), 0, start):
        decisions.apply(record)
        if decisions.first_epoch is not None:
            return start + max(0, closed + 1 - EPOCHS_AHEAD - decisions.first_epoch)
    return start


def _latest_sent(read: _ReadBefore, cluster: Cluster, producer: Producer) -> int:
    """Return the last epoch whose punctuation by the producer Kafka still holds, or 0."""
    job, latest = producer.job, 0
    ends = cluster.end_offsets(job.topic(Role.REPORTS))
    most = _REPORTS_READ // job.topics.partitions, _REPORT_BYTES_READ // job.topics.partitions
    for partition, end in enumerate(ends[: job.topics.partitions]):
        for record in read.backward(Role.REPORTS, partition, end, *most):
            with suppress(CodecError):
                if kind_of(record.value) is not RecordType.PUNCTUATION:
                    continue
                punctuation = decode_punctuation(record.value)
                if punctuation.enrollment == producer.enrollment:
                    latest = max(latest, punctuation.epoch)
    return latest
