"""Conditions under which a stage needs no running workers, and the events that wake it.

A stage is idle if `Stage.idle_seconds` is not None and every record of its topic is processed. It
needs no worker until one of its topics grows or its timer expires. The end offsets of these topics
are read before `idle_seconds` is called, so that any later write changes an end offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.topic_uses import topic_uses
from dpstream.topics.names import Role


def waking_roles(job: DeployedJob, stage: str) -> tuple[Role, ...]:
    reads = topic_uses(job, stage).reads - {Role.STATUS}
    return tuple(role for role in Role if role in reads & job.start_offsets.keys())


@dataclass(frozen=True, slots=True)
class IdleCondition:
    """Idle condition for a stage: end offsets unchanged, and timer not expired.

    Attributes:
        ends: End offsets of the topics that wake the stage, per partition of the deployment.
        seconds: Seconds after which the condition expires; infinite if no clock is used.

    >>> condition = IdleCondition({Role.PARTIALS: (7,), Role.MANIFESTS: (9,)}, 60.0)
    >>> condition.holds({Role.PARTIALS: [7], Role.MANIFESTS: [9]})
    True
    >>> condition.holds({Role.PARTIALS: [7], Role.MANIFESTS: [10]})
    False
    >>> condition.holds({Role.PARTIALS: [7]})
    False
    """

    ends: Mapping[Role, tuple[int, ...]]
    seconds: float = math.inf

    def holds(self, ends: Mapping[Role, Sequence[int]]) -> bool:
        return all(
            tuple(ends.get(role, ()))[: len(known)] == known for role, known in self.ends.items()
        )


def initial_idle_condition(job: DeployedJob, stage: str) -> IdleCondition | None:
    """Return a stage's idle condition after a deployment, before any record is written.

    None if a clock can create work: epochs in device jobs end even if no device reports.
    """
    if job.devices is not None and job.route.stages[stage] is Role.REPORTS:
        return None
    roles = waking_roles(job, stage)
    return IdleCondition({role: tuple(job.start_offsets[role]) for role in roles})
