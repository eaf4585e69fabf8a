"""Feeds refused reports back after a fix: a producer registered late, software upgraded.

What has been fed back is deleted, up to the oldest dead letter that nobody has handled.

A dead letter goes back into ``<job>.reports``, to its epoch's partition, if it would be admitted
now: its epoch has no manifest, its enrolment is registered, and nothing is wrong with the record
itself. Markers among the dead letters remember what was fed back, after it was acknowledged. Should
this process end in between, the next one sends the same batches again, and the shuffle stage drops
them by their ids; what comes after its epoch was decided is dropped and counted as late.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.actions import Append, Flush, Steps
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.epoch_times import times_of
from pipeline.jobs.job_range import EPOCHS_AHEAD
from pipeline.jobs.roster import Roster
from pipeline.kafka.broker_clock import own_milliseconds
from pipeline.kafka.cluster import Cluster, KafkaTransport
from pipeline.kafka.topic_reader import TopicReader
from pipeline.operations.dead_letters import DeadLetterLog, forget_handled, header_of, place_of
from pipeline.operations.deployments import DeploymentError, check_has_devices
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.decision_log import DecisionLog
from topics.batches import Batch, Punctuation
from topics.names import Role
from topics.records import DeadLetter, Reason
from topics.redriven import markers
from topics.sealed_batches import SealedBatch

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

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {
            "dry_run": self.dry_run,
            "fed_back": dict(self.fed_back),
            "epochs": self.epochs,
            "kept": dict(self.kept),
        }


class _Epochs:
    """Who is registered and what is decided, as read at one moment."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._times = times_of(job)
        self._roster = Roster(job)
        self._decisions = DecisionLog(job)
        for record in TopicReader(cluster, job, Role.PRODUCERS).read():
            self._roster.apply(record)
        for record in TopicReader(cluster, job, Role.MANIFESTS).read():
            self._decisions.apply(record)
        self._oldest = self._decisions.oldest_undecided(self._roster.first_epoch)

    def objection(self, record: Batch | SealedBatch | Punctuation) -> str | None:
        """Why the shuffle stage would not take a record in; None if it would."""
        if record.epoch in self._decisions.decided:
            return "epoch is decided already"
        if not isinstance(record, SealedBatch):
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
        DeploymentError: the job is a replay, which has no reports, or has several shuffle
            instances.
        ClusterError: Kafka did not take a record; call again, nothing counts twice.
    """
    check_has_devices(job)
    if job.instances > 1:
        raise DeploymentError(
            f"job {job.name} has {job.instances} shuffle instances, each with its part of a "
            "producer's reports: parts that are fed back one by one could be counted without each "
            "other, so none are; count the rest with dpstream dead-letters --dismiss"
        )
    log = DeadLetterLog(cluster, job)
    # To the end, for the markers; what is fed back is read once more, and never held whole.
    deque(log.read(), maxlen=0)
    admission, epochs = Admission(job), _Epochs(cluster, job)
    fed_back: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    distinct: set[int] = set()
    done: defaultdict[int, list[int]] = defaultdict(list)

    def feed() -> Steps[None]:
        for letter in DeadLetterLog(cluster, job).read():
            if place_of(letter) in log.redriven:
                kept["fed back before"] += 1
                continue
            record = _admitted(job, admission, epochs, letter)
            if isinstance(record, str):
                kept[record] += 1
                continue
            fed_back["punctuation" if isinstance(record, Punctuation) else "batch"] += 1
            distinct.add(record.epoch)
            done[letter.partition].append(letter.offset)
            yield Append(Role.REPORTS, job.partition_of(record.epoch), letter.value)
        yield Flush()

    if dry_run:
        deque(feed(), maxlen=0)
    else:
        KafkaTransport(cluster, job.name).run(feed())
        for partition, offsets in done.items():
            for marker in markers(job.deployment, partition, offsets):
                cluster.append(job.topic(Role.DEAD_LETTERS), marker.to_bytes())
        forget_handled(cluster, job)
    return Redrive(dry_run, fed_back, len(distinct), kept)


def _admitted(
    job: DeployedJob, admission: Admission, epochs: _Epochs, letter: DeadLetter
) -> Batch | SealedBatch | Punctuation | str:
    """What a dead letter holds, or why it is not fed back."""
    if letter.topic != job.topic(Role.REPORTS):
        return "not from the reports"
    if letter.reason not in CURABLE:
        return f"{letter.reason}: no fix cures that"
    partition = _partition_of(job, letter)
    # The stage alone can open a sealed batch; what it refuses comes back.
    admitted = admission.addressed(partition, letter.value)
    if isinstance(admitted, Batch):
        admitted = admission.admit(partition, letter.value)
    if isinstance(admitted, Refusal):
        return f"{admitted.reason}: still refused"
    return epochs.objection(admitted) or admitted


def _partition_of(job: DeployedJob, letter: DeadLetter) -> int:
    """The partition in which a record belongs, which need not be the one it was found in."""
    header = header_of(letter)
    return letter.partition if header is None else job.partition_of(int(header["epoch"]))
