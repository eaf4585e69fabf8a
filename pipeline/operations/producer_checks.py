"""What a producer sees to before it draws: its registration counts, and its state is the latest.

A state is an old copy when the producer has sent an epoch of which it knows nothing. What was sent
is in the reports, and once it is decided in the manifests. Of neither is all read:

* A manifest of an epoch counts only if so few before it are undecided that it lies within
  `EPOCHS_AHEAD` of the oldest of them. So those of epochs after the last one drawn have the
  manifests of all others before them, and lie no further down in the log than these are many.
* What an earlier start of this state has read, and found in order, need not be read again: epochs
  that it knew of then it still knows of.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress

from pipeline.actions import LogRecord
from pipeline.devices.producer import Producer, ProducerError
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import EPOCHS_AHEAD
from pipeline.kafka.cluster import AccessError, Cluster
from pipeline.operations.registrations import read_roster
from pipeline.stages.decision_log import DecisionLog
from topics.batches import decode_punctuation
from topics.frames import CodecError, Kind, kind_of
from topics.manifests import read_head
from topics.names import Role

# Records from the end of a partition back: what was sent lately is there, if it is not decided yet.
_REPORTS_READ = 20_000


def check_registered(
    cluster: Cluster, producer: Producer, notify: Callable[[str], None] = lambda sentence: None
) -> None:
    """See that a producer's registration counts and its state is the latest, before it draws.

    Raises:
        ProducerError: another one registered first under its name, so that all it would send would
            be refused: most likely its state directory was lost or is another one. Or it has sent
            epochs of which its directory knows nothing, which is an old copy then.
    """
    job = producer.job
    enrolled = read_roster(cluster, job).find(producer.enrolment)
    if enrolled is None:
        raise ProducerError(
            f"producer {producer.name} of job {job.name} has registered before, with another state "
            "directory: give that one, or another --name"
        )
    read = _ReadBefore(cluster, producer)
    latest = _latest_decided(read, cluster, producer, enrolled.index)
    try:
        latest = max(latest, _latest_sent(read, cluster, producer))
    except AccessError:
        # Its reports are among those of others, which no producer needs to see.
        notify(
            f"note: epochs that producer {producer.name} has sent and that are not decided yet "
            "cannot be compared with its state directory, for it may not read the reports: never "
            "give it a copy of an earlier state"
        )
    if latest > producer.closed_epoch:
        raise ProducerError(
            f"the state directory of producer {producer.name} of job {job.name} is an old copy: it "
            f"ends with epoch {producer.closed_epoch}, and epoch {latest} was sent. What devices "
            "draw a second time tells more of them than they were promised: give the directory "
            f"that was used last, or end this producer by dpstream producers {job.name} --retire "
            f"{producer.name}; never restore a copy of device state"
        )
    read.keep()


class _ReadBefore:
    """Reads partitions on from where an earlier start of the same state has found all in order.

    Args:
        cluster: with the topics of the producer's job.
        producer: that keeps how far they were read.
    """

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer
        self._positions: dict[str, int] = {}

    def read(self, role: Role, partition: int, start: int) -> Iterator[LogRecord]:
        """Records from `start` on, without those that were read before."""
        fact = f"checked_{role.value}_{partition}"
        before = self._producer.store.fact(fact)
        position = max(start, before if isinstance(before, int) else 0)
        for record in self._cluster.read(self._producer.job.topic(role), partition, position):
            position = record.offset + 1
            yield record
        self._positions[fact] = position

    def keep(self) -> None:
        """Note that all that was read is in order; on a full disk it is read again."""
        with suppress(sqlite3.Error):
            for fact, position in self._positions.items():
                if self._producer.store.fact(fact) != position:
                    self._producer.store.set_fact(fact, position)


def _latest_decided(read: _ReadBefore, cluster: Cluster, producer: Producer, index: int) -> int:
    """The last epoch beyond those drawn whose window a producer is in; 0 without one."""
    job, closed, latest = producer.job, producer.closed_epoch, 0
    for record in read.read(Role.MANIFESTS, 0, _first_beyond(cluster, job, closed)):
        with suppress(CodecError):
            head = read_head(record.value)
            own = (head.deployment, head.fingerprint) == (job.deployment, job.fingerprint)
            if own and head.epoch > closed and head.has(index):
                latest = max(latest, head.epoch)
    return latest


def _first_beyond(cluster: Cluster, job: DeployedJob, closed: int) -> int:
    """An offset below which no manifest of an epoch beyond a closed one counts."""
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
    """The last epoch that Kafka still holds a producer's punctuation of; 0 without one."""
    job, latest = producer.job, 0
    ends = cluster.end_offsets(job.topic(Role.REPORTS))
    for partition, end in enumerate(ends[: job.partitions]):
        start = max(job.start_offset(Role.REPORTS, partition), end - _REPORTS_READ)
        for record in read.read(Role.REPORTS, partition, start):
            with suppress(CodecError):
                if kind_of(record.value) is not Kind.PUNCTUATION:
                    continue
                punctuation = decode_punctuation(record.value)
                if punctuation.enrolment == producer.enrolment:
                    latest = max(latest, punctuation.epoch)
    return latest
