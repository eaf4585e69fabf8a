"""Who reports to a deployment, as an operator sees it; and how to end a producer for good."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pipeline.devices.producer import Producer, ProducerError
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.roster import EnrolledProducer, Roster
from pipeline.kafka.cluster import AccessError, Cluster
from pipeline.kafka.topic_reader import TopicReader
from pipeline.operations.deployments import DeploymentError
from pipeline.stages.decision_log import Decision, DecisionLog
from topics.batches import decode_punctuation
from topics.frames import CodecError, Kind, kind_of
from topics.names import Role
from topics.records import Farewell

# Records from the end of a partition back: what was sent lately is there, if it is not decided yet.
_REPORTS_READ = 20_000


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """A registered producer.

    Attributes:
        name: as registered.
        first_epoch: the first it reports for.
        last_epoch: the last, if it has left or was retired.
        last_in: the latest epoch whose window it was in; None for none.
        devices: how many it stood for then.
        state: "reporting", "silent" (not waited for until it is back) or "left".
    """

    name: str
    first_epoch: int
    last_epoch: int | None
    last_in: int | None
    devices: int
    state: str


class Registrations:
    """The producers of a deployment and what was decided about them, as read at one moment.

    Attributes:
        roster: who has registered.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._cluster = cluster
        self._job = job
        self._last_in: dict[int, int] = {}
        self.roster = Roster(job)
        for record in TopicReader(cluster, job, Role.PRODUCERS).read():
            self.roster.apply(record)
        self._decisions = DecisionLog(job, self._note)
        for record in TopicReader(cluster, job, Role.MANIFESTS).read():
            self._decisions.apply(record)

    def statuses(self) -> list[ProducerStatus]:
        """All producers, in the order of registration."""
        return [self._status(producer) for producer in self.roster]

    def retire(self, name: str) -> int:
        """End a producer for good, with the last epoch decided; returns that epoch.

        No later epoch waits for it, and what it sends for one is refused.

        Raises:
            DeploymentError: there is no such producer, or it has left already.
        """
        producer = self.roster.find_name(name)
        if producer is None:
            known = ", ".join(producer.name for producer in self.roster) or "nobody"
            raise DeploymentError(
                f"no producer {name} is registered with job {self._job.name}; registered: {known}"
            )
        if producer.last_epoch is not None:
            raise DeploymentError(
                f"producer {name} has left already, after epoch {producer.last_epoch}"
            )
        last_epoch = self._decisions.decided.highest
        record = Farewell(self._job.deployment, producer.enrolment, last_epoch)
        self._cluster.append(self._job.topic(Role.PRODUCERS), record.to_bytes())
        return last_epoch

    def last_in(self, producer: EnrolledProducer) -> int:
        """The latest epoch whose window a producer was in; 0 for none."""
        return self._last_in.get(producer.index, 0)

    def _note(self, decision: Decision) -> None:
        manifest = decision.manifest
        for index, inside in enumerate(manifest.producers):
            if inside:
                self._last_in[index] = max(manifest.epoch, self._last_in.get(index, 0))

    def _status(self, producer: EnrolledProducer) -> ProducerStatus:
        next_epoch = self._decisions.decided.highest + 1
        if producer.last_epoch is not None:
            state = "left"
        elif self._decisions.missed(producer.index, producer.first_epoch, next_epoch):
            state = "silent"
        else:
            state = "reporting"
        return ProducerStatus(
            name=producer.name,
            first_epoch=producer.first_epoch,
            last_epoch=producer.last_epoch,
            last_in=self._last_in.get(producer.index),
            devices=self._decisions.population(producer.index),
            state=state,
        )


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
    registrations = Registrations(cluster, job)
    enrolled = registrations.roster.find(producer.enrolment)
    if enrolled is None:
        raise ProducerError(
            f"producer {producer.name} of job {job.name} has registered before, with another state "
            "directory: give that one, or another --name"
        )
    latest = registrations.last_in(enrolled)
    try:
        latest = max(latest, _latest_sent(cluster, producer))
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


def _latest_sent(cluster: Cluster, producer: Producer) -> int:
    """The last epoch that Kafka still holds a producer's punctuation of; 0 without one."""
    job, latest = producer.job, 0
    topic = job.topic(Role.REPORTS)
    for partition, end in enumerate(cluster.end_offsets(topic)[: job.partitions]):
        start = max(job.start_offset(Role.REPORTS, partition), end - _REPORTS_READ)
        for record in cluster.read(topic, partition, start):
            with suppress(CodecError):
                if kind_of(record.value) is not Kind.PUNCTUATION:
                    continue
                punctuation = decode_punctuation(record.value)
                if punctuation.enrolment == producer.enrolment:
                    latest = max(latest, punctuation.epoch)
    return latest
