"""Faust workers: one process drives one stage on Kafka and carries out its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob

COMMITTED_BY = "dpstream"
"""Metadata of offsets that workers commit; tools that reset offsets leave other metadata."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a partition; `own` is True if a worker committed it."""

    offset: int
    own: bool = True

    @classmethod
    def of(cls, found: Any) -> Committed | None:
        """Parse the result of kafka-python or aiokafka; None if no offset is committed."""
        if found is None or found.offset < 0:
            return None
        return cls(int(found.offset), found.metadata == COMMITTED_BY)


def floor_of(committed: Committed | None) -> int:
    """Return the offset below which a worker has finished everything; 0 if unknown."""
    return committed.offset if committed is not None and committed.own else 0


def group_name(job: DeployedJob, stage: str) -> str:
    return f"{job.name}.{stage}.{job.deployment.hex()}"
