"""Notice partitions that no member of a worker's consumer group has.

A leader that does not know the topic yet assigns its partitions to nobody. Kafka gives a member
that is back within its session what it had before, so a restart alone changes nothing: the worker
ends, and joins under another instance id when it is started again.
"""

from __future__ import annotations

from collections.abc import Collection

from dpstream.pipeline.kafka.workers.errors import WorkerError


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
