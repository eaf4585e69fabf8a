"""Data flow of a job as a table: its stages, and the topics that each stage reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.topics.names import SUMS, Role


def stages_of(job: DeployedJob) -> Mapping[str, Role]:
    """Return a job's stages in order, with their input topics; a replay has no shuffler."""
    return {
        stage: role
        for stage, role in job.route.stages.items()
        if job.replay_of is None or role not in job.route.shuffled
    }


def hides_messages(job: DeployedJob, stage: str) -> bool:
    """Return whether the heartbeats of a stage count devices instead of messages."""
    return stages_of(job).get(stage) in job.route.reports and job.counts_devices


@dataclass(frozen=True, slots=True)
class TopicUses:
    """Topics used by one stage; it reads those in `checks` only if records were deleted."""

    reads: frozenset[Role]
    writes: frozenset[Role]
    deletes: Role | None = None
    checks: frozenset[Role] = frozenset({Role.MANIFESTS, Role.ESTIMATES})

    @property
    def topics(self) -> tuple[Role, ...]:
        return tuple(role for role in Role if role in self.reads | self.writes)


def topic_uses(job: Job, stage: str) -> TopicUses:
    role = job.route.stages[stage]
    # Every worker writes heartbeats.
    writes = {Role.STATUS}
    if role in job.route.reports:
        decides = role is Role.REPORTS
        reads = {role, Role.PRODUCERS, Role.MANIFESTS}
        if job.devices is not None and decides:
            # These topics list the enrolled devices and the live collectors.
            reads |= {Role.DEVICES, Role.STATUS}
        output = job.route.decided if decides else Role.SHUFFLED
        writes |= {Role.MANIFESTS, output, Role.DEAD_LETTERS}
        return TopicUses(frozenset(reads), frozenset(writes), deletes=role)
    if role in job.route.hops:
        index = 1 + job.route.hops.index(role)
        writes |= {job.route.output(index), Role.DEAD_LETTERS}
        return TopicUses(frozenset({role, Role.PARTIALS}), frozenset(writes))
    if stage in SHARERS:
        own = SUMS[SHARERS.index(stage)]
        return TopicUses(frozenset({role, own}), frozenset(writes | {own, Role.DEAD_LETTERS}))
    if role is Role.PARTIALS_A:
        return TopicUses(
            frozenset({*SUMS, Role.MANIFESTS, Role.PARTIALS}), frozenset(writes | {Role.PARTIALS})
        )
    if role is Role.SHUFFLED:
        return TopicUses(
            frozenset({role, Role.PARTIALS}),
            frozenset(writes | {Role.PARTIALS, Role.DEAD_LETTERS}),
        )
    published = {Role.ESTIMATES, Role.RESULTS}
    return TopicUses(frozenset({role, Role.MANIFESTS, *published}), frozenset(writes | published))
