"""Feeds refused reports back after a fix: a producer registered late, software upgraded.

What has been fed back is deleted, up to the oldest dead letter that nobody has handled.

A dead letter goes back into the topic of raw reports that it was refused in, to its epoch's
partition, if it would be admitted now: its epoch has no manifest, its enrolment is registered, and
nothing is wrong with the record itself. Where there are several shuffle instances, the first one is
fed last, and nothing of which another one lacks its part.

Markers among the dead letters remember what was fed back, after it was acknowledged. Should this
process end in between, the next one sends the same batches again, and the shuffle stage drops them
by their ids; what comes after its epoch was decided is dropped and counted as late.

The first instance decides windows, by what it finds complete: so nothing of a drawing is fed back
to it before the other instances have all of theirs, be it in their topics or fed back before.
Whose a sealed batch is cannot be seen. There, all that was sent for an epoch has to be whole.
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
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.deployed_jobs import check_has_devices
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.operations.dead_letter_log import (
    DeadLetterLog,
    Place,
    forget_handled,
    header_of,
    place_of,
)
from dpstream.pipeline.stages.admission import Admission, Refusal
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.device_admission import RawRecord
from dpstream.pipeline.stages.stage_builder import admission_of, producer_admission
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from dpstream.topics.redriven import markers

_Drawing: TypeAlias = tuple[int, bytes, bytes]
"""An epoch, who has drawn it, and which of its drawings: ids."""


class Parts:
    """What instances have of each drawing, and of each epoch.

    Args:
        job: with several shuffle instances.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._said: defaultdict[Role, dict[_Drawing, int]] = defaultdict(dict)
        self._batches: defaultdict[tuple[Role, _Drawing | int], set[bytes]] = defaultdict(set)

    def note(self, role: Role, record: RawRecord, value: bytes) -> None:
        """An instance has a record, or is fed it."""
        if isinstance(record, Punctuation):
            self._said[role][_drawing(record)] = record.batches
        elif isinstance(record, Batch):
            self._batches[role, _drawing(record)].add(record.batch)
        else:
            self._batches[role, record.epoch].add(hashlib.sha256(value).digest())

    def note_topics(self, cluster: Cluster, refused: Collection[Place]) -> None:
        """Note what topics of raw reports hold, but for what was refused where it lies."""
        job = self._job
        for role in job.report_roles:
            admission = producer_admission(job, role=role)
            for partition in range(job.topics.partitions):
                for record in TopicReader(cluster, job, role, partition).read():
                    found = admission.addressed(partition, record.value)
                    place = job.topic(role), partition, record.offset
                    if not isinstance(found, Refusal) and place not in refused:
                        self.note(role, found, record.value)

    def has_others_of(self, record: RawRecord) -> bool:
        """Whether the other instances have all parts of what a record of the first one is of."""
        others = self._job.report_roles[1:]
        if not self._job.seals_batches:
            assert isinstance(record, Batch | Punctuation)
            drawing = _drawing(record)
            return all(
                self._said[role].get(drawing) == len(self._batches[role, drawing])
                for role in others
            )
        epoch = record.epoch
        drawn = {each for each in self._said[Role.REPORTS] if each[0] == epoch}
        for role in others:
            said = {each: n for each, n in self._said[role].items() if each[0] == epoch}
            if not drawn <= said.keys() or sum(said.values()) != len(self._batches[role, epoch]):
                return False
        return True


def _drawing(record: Batch | Punctuation) -> _Drawing:
    drawing = drawing_of(record.batch) if isinstance(record, Batch) else record.drawing
    return record.epoch, record.enrolment, drawing


CURABLE = (
    Reason.ENROLMENT,
    Reason.EPOCH,
    Reason.VERSION,
    Reason.OVERSIZED,
    Reason.PROTOCOL,
    Reason.SEALED,
)
"""Reasons that may hold no more after a registration, an upgrade, a key, or some epochs: the others
say that the record is damaged, belongs elsewhere or contradicts what was sent before."""

_LACKS_A_PART = "another shuffle instance lacks its part of it"


@dataclass(frozen=True, slots=True)
class Redrive:
    """What became of the dead letters of a deployment.

    Attributes:
        dry_run: whether nothing was written.
        fed_back: records by what they are, "batch" or "punctuation".
        epochs: how many different ones these are of.
        kept: records that were left where they are, by why.
    """

    dry_run: bool
    fed_back: Mapping[str, int]
    epochs: int
    kept: Mapping[str, int]


class _Epochs:
    """Who is registered and what is decided, as read at one moment."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._times = times_of(job)
        self._roster = Roster(job)
        self._decisions = DecisionLog(job)
        for record in TopicReader(cluster, job, Role.PRODUCERS).read():
            self._roster.apply(record)
        self._decisions.apply_all(TopicReader(cluster, job, Role.MANIFESTS).read())
        first = self._roster.first_epoch if job.devices is None else job.first_epoch
        self._oldest = self._decisions.oldest_undecided(first)

    def objection(self, record: RawRecord) -> str | None:
        """Why the shuffle stage would not take a record in; None if it would."""
        if record.epoch in self._decisions.decided:
            return "epoch is decided already"
        if isinstance(record, Batch | Punctuation):
            producer = self._roster.find(record.enrolment)
            if producer is None:
                return "enrolment is still not registered"
            if not producer.reports_at(record.epoch):
                return "producer is not registered for the epoch"
        if record.epoch < self._oldest:
            return "deployment begins with a later epoch"
        if record.epoch > self._oldest + EPOCHS_AHEAD:
            return f"epoch is still more than {EPOCHS_AHEAD} ahead"
        if self._times is not None and self._times.refusal(record.epoch, own_milliseconds()):
            return "epoch has not begun"
        return None


def redrive(cluster: Cluster, job: DeployedJob, *, dry_run: bool = False) -> Redrive:
    """Feed back what would be admitted now, each record once.

    Args:
        cluster: where the job runs.
        job: as deployed.
        dry_run: only say what would be done.

    Raises:
        DeploymentError: the job is a replay, which has no reports.
        ClusterError: Kafka did not take a record; call again, nothing counts twice.
    """
    check_has_devices(job)
    log = DeadLetterLog(cluster, job)
    # To the end, for the markers; what is fed back is read once more, and never held whole.
    refused = {place_of(letter) for letter in log.read()} | log.redriven
    letters = _Letters(job, _Epochs(cluster, job))
    parts = None
    if job.shuffle.instances > 1:
        parts = _parts(cluster, letters, log.redriven, refused)
    fed_back: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    distinct: set[int] = set()
    done: defaultdict[tuple[Role, int], list[int]] = defaultdict(list)

    def feed(wanted: Collection[Role], *, others: bool) -> Steps[None]:
        """Feed the letters of some topics; `others`: see to those that are from none of them."""
        for letter in DeadLetterLog(cluster, job).read():
            role = letters.role_of(letter)
            if role not in wanted and (role is not None or not others):
                continue
            if place_of(letter) in log.redriven:
                kept["fed back before"] += 1
                continue
            record = letters.admitted(letter)
            if role is Role.REPORTS and parts is not None and not isinstance(record, str):
                record = record if parts.has_others_of(record) else _LACKS_A_PART
            if role is None or isinstance(record, str):
                kept[str(record)] += 1
                continue
            fed_back["punctuation" if isinstance(record, Punctuation) else "batch"] += 1
            distinct.add(record.epoch)
            done[role, letter.partition].append(letter.offset)
            yield Append(role, job.topics.partition_of(record.epoch), letter.value)
        yield Flush()

    def feed_all() -> Steps[None]:
        if parts is not None:
            yield from feed(job.report_roles[1:], others=False)
        yield from feed((Role.REPORTS,), others=True)

    if dry_run:
        deque(feed_all(), maxlen=0)
    else:
        KafkaTransport(cluster, job.name).run(feed_all())
        for (role, partition), offsets in done.items():
            for marker in markers(job.deployment, partition, offsets, role):
                cluster.append(job.topic(Role.DEAD_LETTERS), marker.to_bytes())
        forget_handled(cluster, job)
    return Redrive(dry_run, fed_back, len(distinct), kept)


class _Letters:
    """What dead letters hold, and whether it would be admitted now."""

    def __init__(self, job: DeployedJob, epochs: _Epochs) -> None:
        self.job = job
        self._epochs = epochs
        self._roles = {job.topic(role): role for role in job.report_roles}
        self._admissions = {role: admission_of(job, role) for role in job.report_roles}

    def role_of(self, letter: DeadLetter) -> Role | None:
        return self._roles.get(letter.topic)

    def admitted(self, letter: DeadLetter) -> RawRecord | str:
        role = self.role_of(letter)
        if role is None:
            return "not from the reports"
        if letter.reason not in CURABLE:
            return f"{letter.reason}: no fix cures that"
        partition, admission = _partition_of(self.job, letter), self._admissions[role]
        # The stage alone can open a sealed batch; what it refuses comes back.
        admitted = admission.addressed(partition, letter.value)
        if isinstance(admitted, Batch) and isinstance(admission, Admission):
            admitted = admission.admit(partition, letter.value)
        if isinstance(admitted, Refusal):
            return f"{admitted.reason}: still refused"
        return self._epochs.objection(admitted) or admitted


def _parts(
    cluster: Cluster, letters: _Letters, redriven: Collection[Place], refused: Collection[Place]
) -> Parts:
    parts = Parts(letters.job)
    parts.note_topics(cluster, refused)
    for letter in DeadLetterLog(cluster, letters.job).read():
        role, record = letters.role_of(letter), letters.admitted(letter)
        if role is not None and not isinstance(record, str) and place_of(letter) not in redriven:
            parts.note(role, record, letter.value)
    return parts


def _partition_of(job: DeployedJob, letter: DeadLetter) -> int:
    """The partition in which a record belongs, which need not be the one it was found in."""
    header = header_of(letter)
    return letter.partition if header is None else job.topics.partition_of(int(header["epoch"]))
