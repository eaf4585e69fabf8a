"""Notices what others do to the topics of a job while its workers run.

A topic that is gone, or has fewer partitions or records than before, was deleted and perhaps made
again: what it held is lost, and going on would pass that over in silence. Partitions that were
added are nobody's: epoch e lies in partition e mod P with the P of the deployment, and what lies
elsewhere is not read.

`GroupWatch` notices partitions that no member of a worker's consumer group has.

A leader that does not know the topic yet assigns its partitions to nobody. Kafka gives a member
that is back within its session what it had before, so a restart alone changes nothing: the worker
ends, and joins under another instance id when it is started again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from dpstream.pipeline.kafka.cluster_errors import WorkerError
from dpstream.pipeline.kafka.kept_state import begin_anew, made_again
from dpstream.topics.names import Role


class UnassignedError(WorkerError):
    """No member of the group has some partitions."""


class GroupWatch:
    """Count the seconds during which partitions have no owner.

    A worker without partitions is content as long as others have them all.

    Args:
        partitions: of the topic, as the job was deployed.
        session: seconds after which partitions without an owner are a fault.
    """

    def __init__(self, partitions: int, session: float) -> None:
        self._partitions = frozenset(range(partitions))
        self._session = session
        self._since: float | None = None

    def see(self, assigned: Collection[int] | None, now: float) -> None:
        """Look at what members have; None: the group is being rebalanced, or nobody answers.

        Raises:
            UnassignedError: partitions had no owner for longer than a session.
        """
        missing = () if assigned is None else sorted(self._partitions.difference(assigned))
        if not missing:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > self._session:
            raise UnassignedError(
                f"no worker has partitions {', '.join(map(str, missing))}, for longer than a "
                f"session of {self._session:g} s, although the broker answers: ending; start me "
                "again, and I join the group under another instance id"
            )


# Looks in a row: a broker that has just come back may not know everything yet.
_LOOKS = 3


class WatchedJob(Protocol):
    """What is asked of a `dpstream.pipeline.jobs.deployed_job.DeployedJob`."""

    @property
    def name(self) -> str:
        """The name of the job."""

    @property
    def start_offsets(self) -> Mapping[Role, tuple[int, ...]]:
        """Where the deployment begins, in every partition of every topic it was deployed with."""

    @property
    def topic_ids(self) -> Mapping[Role, str]:
        """Kafka's ids of the topics that it was deployed with; of heartbeats none."""

    def topic(self, role: Role) -> str:
        """The name of a topic of the job."""


class TopicWatch:
    """Compares the topics of a stage with those the job was deployed with.

    Args:
        job: the deployed job.
        role: of the topic whose partitions the workers of the stage share.
        used: what else the stage reads and writes, as of `dpstream.pipeline.stages.topic_uses`.
    """

    def __init__(self, job: WatchedJob, role: Role, used: Collection[Role] = ()) -> None:
        self._job = job
        self._used = frozenset({role, Role.STATUS, *used})
        self._role = role
        self._bad_counts = self._bad_ends = 0
        self._told: set[Role] = set()

    @property
    def partitions(self) -> int:
        """How many partitions of the topic are the job's."""
        return len(self._job.start_offsets[self._role])

    @property
    def used(self) -> tuple[Role, ...]:
        """The topics that the stage reads and writes, of those the job was deployed with."""
        return tuple(role for role in Role if role in self._used & self._job.start_offsets.keys())

    def see_partitions(self, counts: Mapping[Role, int]) -> list[str]:
        """Look at how many partitions the topics have; returns what is new and harmless.

        Raises:
            WorkerError: one has been gone, or has had too few, for some looks.
        """
        wrong = None
        notices = []
        for role in self.used:
            deployed, found = len(self._job.start_offsets[role]), counts.get(role, 0)
            topic = self._job.topic(role)
            if not found:
                wrong = f"topic {topic} is gone: was the job undeployed? If not, {self._remedy}"
            elif found < deployed:
                wrong = (
                    f"topic {topic} has {found} partitions, the job was deployed with {deployed}: "
                    f"it was deleted and made again; {self._remedy}"
                )
            elif found > deployed and role not in self._told:
                self._told.add(role)
                notices.append(
                    f"topic {topic} has {found} partitions, the job was deployed with {deployed}: "
                    f"the others are not read, epoch e belongs into partition e mod {deployed}"
                )
        self._bad_counts = 0 if wrong is None else self._bad_counts + 1
        if wrong is not None and self._bad_counts >= _LOOKS:
            raise WorkerError(wrong)
        return notices

    def see_ids(self, ids: Mapping[str, str]) -> None:
        """Look at Kafka's ids of the topics, by name; those that are gone have none.

        Raises:
            WorkerError: one has another id than the job was deployed with.
        """
        for role in self.used:
            topic, deployed = self._job.topic(role), self._job.topic_ids.get(role)
            if deployed is not None and ids.get(topic, deployed) != deployed:
                raise WorkerError(made_again(self._job.name, topic))

    def see_ends(self, ends: Mapping[int, int], reached: Mapping[int, int]) -> None:
        """Look at the ends of partitions, asked for after the stage had `reached` these offsets.

        Raises:
            WorkerError: one has ended before that, or before the deployment, for some looks.
        """
        starts = dict(enumerate(self._job.start_offsets[self._role]))
        wrong = [
            (partition, end, at)
            for partition, end in ends.items()
            if end < (at := max(reached.get(partition, 0), starts.get(partition, 0)))
        ]
        self._bad_ends = self._bad_ends + 1 if wrong else 0
        if self._bad_ends >= _LOOKS:
            partition, end, at = wrong[0]
            raise WorkerError(
                f"{self._job.topic(self._role)}, partition {partition} ends at offset {end}, and "
                f"{at} was reached before: the topic was deleted and made again, or its brokers "
                f"have lost records, unless a broker is away: others learn late where it ends, and "
                f"this passes; if it stays, {self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        return begin_anew(self._job.name)
