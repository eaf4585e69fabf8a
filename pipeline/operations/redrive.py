"""Requeue rejected reports after a fix, such as a late registration or a software upgrade.

* A dead letter returns to the raw report topic from which it was rejected, to its epoch's
  partition, if it would be admitted now.
* Requeued letters before the oldest unhandled one are deleted.
* Once requeued records are acknowledged, markers among the dead letters list these records. If this
  process ends before that, the next process sends the same batches again, and the shuffler drops
  duplicates by their IDs. Records that arrive after their epoch was finalized are dropped and
  counted as late.
* With parallel shufflers, records for the first one are requeued last, because that shuffler
  finalizes windows. The first shuffler gets its part of a draw only after all other shufflers have
  their parts of that draw.
* A sealed batch does not reveal its producer, so the other shufflers must have all parts for the
  epoch.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.deployed_jobs import check_has_devices
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.operations.dead_letter_log import (
    DeadLetterLog,
    LogPosition,
    forget_handled,
    header_of,
    log_position,
)
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.device_admission import RawRecord
from dpstream.pipeline.stages.stage_builder import admission_of, producer_admission
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from dpstream.topics.redriven import markers

_Drawing: TypeAlias = tuple[int, bytes, bytes]
"""Epoch, enrollment ID and draw ID."""


class Parts:
    """Records that are, or will be, in the topics of parallel shufflers, by draw and by epoch."""

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._counts: defaultdict[Role, dict[_Drawing, int]] = defaultdict(dict)
        self._batches: defaultdict[tuple[Role, _Drawing | int], set[bytes]] = defaultdict(set)

    def note(self, role: Role, record: RawRecord, value: bytes) -> None:
        if isinstance(record, Punctuation):
            self._counts[role][_drawing(record)] = record.batches
        elif isinstance(record, Batch):
            self._batches[role, _drawing(record)].add(record.batch)
        else:
            self._batches[role, record.epoch].add(hashlib.sha256(value).digest())

    def note_topics(self, cluster: Cluster, rejected: Collection[LogPosition]) -> None:
        job = self._job
        for role in job.route.reports:
            admission = producer_admission(job, role=role)
            for partition in range(job.topics.partitions):
                for record in TopicReader(cluster, job, role, partition).read():
                    found = admission.addressed(partition, record.value)
                    place = job.topic(role), partition, record.offset
                    if not isinstance(found, Rejection) and place not in rejected:
                        self.note(role, found, record.value)

    def has_others_of(self, record: RawRecord) -> bool:
        """Return whether all shufflers except the first have their parts of a record's draw."""
        others = self._job.route.reports[1:]
        if not self._job.seals_batches:
            assert isinstance(record, Batch | Punctuation)
            drawing = _drawing(record)
            return all(
                self._counts[role].get(drawing) == len(self._batches[role, drawing])
                for role in others
            )
        epoch = record.epoch
        drawn = {each for each in self._counts[Role.REPORTS] if each[0] == epoch}
        for role in others:
            counts = {each: n for each, n in self._counts[role].items() if each[0] == epoch}
            if not drawn <= counts.keys() or sum(counts.values()) != len(
                self._batches[role, epoch]
            ):
                return False
        return True


def _drawing(record: Batch | Punctuation) -> _Drawing:
    drawing = drawing_of(record.batch) if isinstance(record, Batch) else record.drawing
    return record.epoch, record.enrollment, drawing


CURABLE = (
    Reason.ENROLLMENT,
    Reason.EPOCH,
    Reason.VERSION,
    Reason.OVERSIZED,
    Reason.PROTOCOL,
    Reason.SEALED,
)
"""Rejection reasons that a registration, an upgrade, a key or a later epoch can remove.

All other reasons mean that a record is damaged, belongs elsewhere or contradicts earlier records.
"""

_LACKS_A_PART = "the part for another shuffler is missing"


@dataclass(frozen=True, slots=True)
class Redrive:
    """Outcome of requeuing dead letters: `requeued` by kind of record, `kept` by reason."""

    dry_run: bool
    requeued: Mapping[str, int]
    epochs: int
    kept: Mapping[str, int]


class _Epochs:
    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._times = times_of(job)
        self._registry = ProducerRegistry(job)
        self._decisions = DecisionLog(job)
        for record in TopicReader(cluster, job, Role.PRODUCERS).read():
            self._registry.apply(record)
        self._decisions.apply_all(TopicReader(cluster, job, Role.MANIFESTS).read())
        first = self._registry.first_epoch if job.devices is None else job.first_epoch
        self._oldest = self._decisions.oldest_undecided(first)

    def objection(self, record: RawRecord) -> str | None:
        if record.epoch in self._decisions.decided:
            return "epoch is already finalized"
        if isinstance(record, Batch | Punctuation):
            producer = self._registry.find(record.enrollment)
            if producer is None:
                return "enrollment is still not registered"
            if not producer.reports_at(record.epoch):
                return "producer is not registered for the epoch"
        if record.epoch < self._oldest:
            return "deployment starts with a later epoch"
        if record.epoch > self._oldest + EPOCHS_AHEAD:
            return f"epoch is still more than {EPOCHS_AHEAD} epochs ahead"
        if self._times is not None and self._times.rejection(record.epoch, own_milliseconds()):
            return "epoch has not started"
        return None


def redrive(cluster: Cluster, job: DeployedJob, *, dry_run: bool = False) -> Redrive:
    """Requeue every record once if it would be admitted now; with `dry_run`, write nothing.

    Raises DeploymentError for a replay, which has no reports, and ClusterError if Kafka rejects a
    record. After an error, call it again: no record is counted twice.
    """
    check_has_devices(job)
    log = DeadLetterLog(cluster, job)
    # Read to the end for the markers. Letters to requeue are read again, to save memory.
    rejected = {log_position(letter) for letter in log.read()} | log.redriven
    letters = _Letters(job, _Epochs(cluster, job))
    parts = None
    if job.shuffle.instances > 1:
        parts = _parts(cluster, letters, log.redriven, rejected)
    requeued: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    distinct: set[int] = set()
    done: defaultdict[tuple[Role, int], list[int]] = defaultdict(list)

    def feed(wanted: Collection[Role], *, others: bool) -> Steps[None]:
        """Requeue letters from `wanted` topics; if `others`, count letters from unknown topics."""
        for letter in DeadLetterLog(cluster, job).read():
            role = letters.role_of(letter)
            if role not in wanted and (role is not None or not others):
                continue
            if log_position(letter) in log.redriven:
                kept["already requeued"] += 1
                continue
            record = letters.admitted(letter)
            if role is Role.REPORTS and parts is not None and not isinstance(record, str):
                record = record if parts.has_others_of(record) else _LACKS_A_PART
            if role is None or isinstance(record, str):
                kept[str(record)] += 1
                continue
            requeued["punctuation" if isinstance(record, Punctuation) else "batch"] += 1
            distinct.add(record.epoch)
            done[role, letter.partition].append(letter.offset)
            yield Append(role, job.topics.partition_of(record.epoch), letter.value)
        yield Flush()

    def feed_all() -> Steps[None]:
        if parts is not None:
            yield from feed(job.route.reports[1:], others=False)
        yield from feed((Role.REPORTS,), others=True)

    if dry_run:
        deque(feed_all(), maxlen=0)
    else:
        KafkaTransport(cluster, job.name).run(feed_all())
        for (role, partition), offsets in done.items():
            for marker in markers(job.deployment, partition, offsets, role):
                cluster.append(job.topic(Role.DEAD_LETTERS), marker.to_bytes())
        forget_handled(cluster, job)
    return Redrive(dry_run, requeued, len(distinct), kept)


class _Letters:
    def __init__(self, job: DeployedJob, epochs: _Epochs) -> None:
        self.job = job
        self._epochs = epochs
        self._roles = {job.topic(role): role for role in job.route.reports}
        self._admissions = {role: admission_of(job, role) for role in job.route.reports}

    def role_of(self, letter: DeadLetter) -> Role | None:
        return self._roles.get(letter.topic)

    def admitted(self, letter: DeadLetter) -> RawRecord | str:
        role = self.role_of(letter)
        if role is None:
            return "not from a reports topic"
        if letter.reason not in CURABLE:
            return f"{letter.reason}: cannot be fixed"
        partition, admission = _partition_of(self.job, letter), self._admissions[role]
        # Only the shuffler can decrypt a sealed batch; if rejected, it becomes a dead letter again.
        admitted = admission.addressed(partition, letter.value)
        if isinstance(admitted, Batch) and isinstance(admission, Admission):
            admitted = admission.admit(partition, letter.value)
        if isinstance(admitted, Rejection):
            return f"{admitted.reason}: still rejected"
        return self._epochs.objection(admitted) or admitted


def _parts(
    cluster: Cluster,
    letters: _Letters,
    redriven: Collection[LogPosition],
    rejected: Collection[LogPosition],
) -> Parts:
    parts = Parts(letters.job)
    parts.note_topics(cluster, rejected)
    for letter in DeadLetterLog(cluster, letters.job).read():
        role, record = letters.role_of(letter), letters.admitted(letter)
        if (
            role is not None
            and not isinstance(record, str)
            and log_position(letter) not in redriven
        ):
            parts.note(role, record, letter.value)
    return parts


def _partition_of(job: DeployedJob, letter: DeadLetter) -> int:
    header = header_of(letter)
    return letter.partition if header is None else job.topics.partition_of(int(header["epoch"]))
