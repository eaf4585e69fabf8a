"""Check, before a producer reports, that its registration is valid and its state is the latest.

A state is an old copy if the producer has sent an epoch that the state does not contain. Sent
epochs appear in the reports and, after they are finalized, in the manifests. Neither topic is read
completely:

* A manifest is valid only if its epoch is within `EPOCHS_AHEAD` of the oldest unfinalized epoch. If
  the state ends with epoch e, the manifest of a later epoch therefore comes after the manifests of
  all epochs up to e - `EPOCHS_AHEAD`.
* Records that were checked at an earlier start with this state are not read again.
* Records older than the state folder cannot be from its producer, whose random enrollment ID was
  created with the folder.
* Only the last few MiB of reports in all partitions are read. With ten thousand producers, these
  might cover only a part of one epoch. They reveal an old copy only if the missing epoch is among
  the latest and is not finalized yet. Once it is finalized, its manifest reveals the copy.
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

# Maximum records and bytes to read backward from the ends of all partitions, in total.
_REPORTS_READ = 20_000
_REPORT_BYTES_READ = 16 << 20
# Size of a partition's first chunk, in records; chunks double until the limits are reached.
_FIRST_REPORTS = 64

LogPartition = tuple[Role, int]


def ends_before(cluster: Cluster, job: DeployedJob, state: Path) -> Mapping[LogPartition, int]:
    """Return the end offsets of manifests and reports, or an empty mapping if the state exists.

    Call this before opening the producer: records below these offsets precede its registration.
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
    """Check that a producer's registration is valid and its state is the latest, before it reports.

    `before` is the result of `ends_before`. `notify` is called if a check is impossible.

    Raises:
        ContradictionError: A topic ends before acknowledged records.
        ProducerError: Another producer registered first under this name, or the state directory is
            an old copy.
    """
    job = producer.job
    _check_ends(cluster, producer)
    enrolled = read_registry(cluster, job).find(producer.enrollment)
    if enrolled is None:
        raise ProducerError(
            f"producer {producer.name} of job {job.name} is already registered with another "
            "state directory: use that directory, or another --name"
        )
    read = _ReadBefore(cluster, producer, before or {})
    latest = _latest_decided(read, cluster, producer, enrolled.index)
    try:
        latest = max(latest, _latest_sent(read, cluster, producer))
    except AccessError:
        # The producer's reports are mixed with those of others, which it need not see.
        notify(
            f"note: unfinalized epochs that producer {producer.name} sent cannot be compared with "
            "its state directory, because the producer is not allowed to read the reports: never "
            "start it with a copy of an earlier state"
        )
    if latest > producer.closed_epoch:
        raise ProducerError(
            f"the state directory of producer {producer.name} of job {job.name} is an old "
            f"copy: its last epoch is {producer.closed_epoch}, but epoch {latest} was sent. "
            "Randomizing an epoch again can disclose more than guaranteed. Use the latest "
            f"state directory, or retire this producer: 'dpstream producers {job.name} "
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
                    f"reports from producer {producer.name} in {job.topic(role)}, partition "
                    f"{partition}, were acknowledged up to offset {known}, but the partition "
                    f"ends at {end}: {records_lost(job.name)}"
                )


class _ReadBefore:
    """Read partitions from where an earlier start's checks ended, or from `before`."""

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
        """Yield the last records below `end`, about `size` bytes, in growing chunks backward."""
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
        """Store the read positions; if the disk is full, the records will be read again."""
        with suppress(sqlite3.Error):
            for fact, position in self._positions.items():
                if self._producer.store.fact(fact) != position:
                    self._producer.store.set_fact(fact, position)


def _fact(role: Role, partition: int) -> str:
    return f"checked_{role.value}_{partition}"


def _latest_decided(read: _ReadBefore, cluster: Cluster, producer: Producer, index: int) -> int:
    job, closed, latest = producer.job, producer.closed_epoch, 0
    for record in read.onward(Role.MANIFESTS, 0, _first_beyond(cluster, job, closed)):
        with suppress(CodecError):
            head = read_head(record.value)
            own = (head.deployment, head.fingerprint) == (job.deployment, job.fingerprint)
            if own and head.epoch > closed and head.has(index):
                latest = max(latest, head.epoch)
    return latest


def _first_beyond(cluster: Cluster, job: DeployedJob, closed: int) -> int:
    """Return an offset below which no valid manifest has an epoch after `closed`."""
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
    """Return the last epoch that the producer has sent according to recent reports, or 0."""
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
