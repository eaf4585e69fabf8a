"""Detect changes to the topics of a job while its workers run.

* A topic that is gone, or has fewer partitions or records than before, was deleted and perhaps
  recreated. Its data is lost, and continuing would hide the loss.
* Added partitions are unused: epoch e is in partition e mod P, with the P of the deployment.
* `GroupWatch` detects partitions that no member of a worker's consumer group has. A group leader
  that does not know the topic yet leaves its partitions unassigned. A restart is not enough: a
  member that returns within its session gets its previous partitions. The worker therefore exits,
  and rejoins under another instance ID when it is restarted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster_errors import WorkerError
from dpstream.pipeline.kafka.stored_state import recreated, restart
from dpstream.topics.names import Role


class UnassignedError(WorkerError):
    pass


class GroupWatch:
    """Detect partitions that have had no owner for more than `session` seconds."""

    def __init__(self, partitions: int, session: float) -> None:
        self._partitions = frozenset(range(partitions))
        self._session = session
        self._since: float | None = None

    def see(self, assigned: Collection[int] | None, now: float) -> None:
        missing = () if assigned is None else sorted(self._partitions.difference(assigned))
        if not missing:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > self._session:
            raise UnassignedError(
                f"for longer than the session timeout of {self._session:g} s, partitions "
                f"{', '.join(map(str, missing))} have not been assigned to any worker, although "
                "the broker answers: exiting. Restart this worker, so that it joins the group "
                "under another instance ID"
            )


# Failed checks in a row before an error: a broker that has just started might lag behind.
_LOOKS = 3


class TopicWatch:
    """Compare the topics of a stage with the topics at the job's deployment.

    `role` is the topic whose partitions the stage's workers share; `used` has its other topics.
    Methods raise WorkerError only if several consecutive checks fail.
    """

    def __init__(self, job: DeployedJob, role: Role, used: Collection[Role] = ()) -> None:
        self._job = job
        self._used = frozenset({role, Role.STATUS, *used})
        self._role = role
        self._bad_counts = self._bad_ends = 0
        self._logged: set[Role] = set()

    @property
    def partitions(self) -> int:
        return len(self._job.start_offsets[self._role])

    @property
    def used(self) -> tuple[Role, ...]:
        return tuple(role for role in Role if role in self._used & self._job.start_offsets.keys())

    def see_partitions(self, counts: Mapping[Role, int]) -> list[str]:
        wrong = None
        warnings = []
        for role in self.used:
            deployed, found = len(self._job.start_offsets[role]), counts.get(role, 0)
            topic = self._job.topic(role)
            if not found:
                wrong = (
                    f"topic {topic} no longer exists: was the job undeployed? If not: "
                    f"{self._remedy}"
                )
            elif found < deployed:
                wrong = (
                    f"topic {topic} has {found} partitions, but the job was deployed with "
                    f"{deployed}: the topic was deleted and recreated. {self._remedy}"
                )
            elif found > deployed and role not in self._logged:
                self._logged.add(role)
                warnings.append(
                    f"topic {topic} has {found} partitions, but the job was deployed with "
                    f"{deployed}: added partitions are not read, because epoch e belongs in "
                    f"partition e mod {deployed}"
                )
        self._bad_counts = 0 if wrong is None else self._bad_counts + 1
        if wrong is not None and self._bad_counts >= _LOOKS:
            raise WorkerError(wrong)
        return warnings

    def see_ids(self, ids: Mapping[str, str]) -> None:
        """Check Kafka's topic IDs, by topic name; missing topics are omitted."""
        for role in self.used:
            topic, deployed = self._job.topic(role), self._job.topic_ids.get(role)
            if deployed is not None and ids.get(topic, deployed) != deployed:
                raise WorkerError(recreated(self._job.name, topic))

    def see_ends(self, ends: Mapping[int, int], reached: Mapping[int, int]) -> None:
        """Check the end offsets, which were requested after `reached` was recorded."""
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
                f"{self._job.topic(self._role)}, partition {partition} ends at offset {end}, "
                f"but had previously reached offset {at}: the topic was deleted and recreated, or "
                "its brokers lost records. While a broker is down, this is temporary. If it "
                f"persists: {self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        return restart(self._job.name)
