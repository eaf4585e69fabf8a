"""What ends a worker, and what ends only what it was doing."""

from __future__ import annotations

from dpstream.pipeline.errors import DpstreamError


class WorkerError(DpstreamError):
    """The worker cannot go on; the message says why and what to do."""


class PositionDeletedError(WorkerError):
    """Records that a stage still needs are no longer in their topic."""

    def __init__(
        self, topic: str, partition: int, wanted: int, first: int, *, hole: bool = False
    ) -> None:
        why = (
            f"goes on at {first}): its cleanup.policy was changed, see dpstream status"
            if hole
            else f"begins at {first}): the outage was longer than the retention"
        )
        super().__init__(
            f"{topic}, partition {partition}: offsets {wanted} to {first - 1} are needed and were "
            f"deleted (the log {why}"
        )
        self.partition = partition

    def naming(self, unfinished: str) -> WorkerError:
        """The same error, with the epochs that are lost by it."""
        return WorkerError(
            f"{self}; {unfinished} cannot be released: to begin anew, "
            "dpstream deploy JOBFILE --replace"
        )


class AbandonedError(Exception):
    """The assignment under which a stage was working has ended, and its work with it."""
