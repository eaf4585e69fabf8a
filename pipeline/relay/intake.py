"""What a relay takes of a gateway: whole records of a job that runs, and where each belongs.

A relay opens nothing and changes nothing. It looks at what the shuffle stage looks at first, so
that whoever sends what nobody could read, or what is made for another deployment, is told so.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import epoch_problem
from pipeline.jobs.relay_paths import part_path
from pipeline.stages.admission import Refusal, decode_raw, identity_refusal, readable
from topics.bundles import records_in
from topics.names import Role
from topics.records import Reason


@dataclass(frozen=True, slots=True)
class Place:
    """Where records belong: the topic of a shuffle instance, and a partition of their epoch."""

    topic: str
    partition: int


def part_named(job: DeployedJob, path: str) -> tuple[Role, int] | None:
    """The topic that a path names, and which part of an epoch lies there; None: none."""
    lanes = range(1, job.lanes + 1) if job.lanes > 1 else (None,)
    for role in job.report_roles:
        for lane in lanes:
            if part_path(role, lane) == path:
                return role, lane or 1
    return None


def taken(
    job: DeployedJob, role: Role, body: bytes, lane: int = 1
) -> dict[Place, list[bytes]] | Refusal:
    """The records of a body by where they belong, in their order; or why none of them is taken.

    Args:
        job: that takes bundles.
        role: of the topic they are for.
        body: a bundle of them, or one alone.
        lane: of their epochs, where these are divided among lanes.
    """
    found: dict[Place, list[bytes]] = {}
    for value in records_in(body):
        record = readable(decode_raw, value)
        if isinstance(record, Refusal):
            return record
        refusal = identity_refusal(job, record)
        if refusal is not None:
            return refusal
        problem = epoch_problem(job, record.epoch)
        if problem is not None:
            return Refusal(Reason.EPOCH, problem)
        place = Place(job.topic(role), job.partition_of(record.epoch, lane))
        found.setdefault(place, []).append(value)
    return found
