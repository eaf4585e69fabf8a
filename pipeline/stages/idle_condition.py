"""When the workers of a stage may rest, and what wakes them.

Whatever a stage does follows from the topics that it reads, and from clocks. Where all of it is
done (`Stage.rests`, and every record of its topic is finished with), nothing is left to do before
one of these topics grows, or the time that the stage has said is up: no worker needs to run till
then. What a rest stands on are the ends of these topics, taken before the stage was asked: whatever
is written later, also in between, makes an end differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.topic_uses import topic_uses
from dpstream.topics.names import Role


def waking_roles(job: DeployedJob, stage: str) -> tuple[Role, ...]:
    """The topics that wake a stage: all that it reads, but for what workers say of themselves.

    Raises:
        KeyError: the job has no such stage.
    """
    reads = topic_uses(job, stage).reads - {Role.STATUS}
    return tuple(role for role in Role if role in reads & job.start_offsets.keys())


@dataclass(frozen=True, slots=True)
class IdleCondition:
    """Nothing is left to do for a stage, unless a topic ends elsewhere, or the time is up.

    Attributes:
        ends: of the topics that wake it, by partition; those of the deployment's partitions.
        seconds: for which it lasts from when it was begun; infinite where no clock takes part.

    >>> rest = IdleCondition({Role.PARTIALS: (7,), Role.MANIFESTS: (9,)}, 60.0)
    >>> rest.holds({Role.PARTIALS: [7], Role.MANIFESTS: [9]})
    True
    >>> rest.holds({Role.PARTIALS: [7], Role.MANIFESTS: [10]})
    False
    >>> rest.holds({Role.PARTIALS: [7]})
    False
    """

    ends: Mapping[Role, tuple[int, ...]]
    seconds: float = math.inf

    def holds(self, ends: Mapping[Role, Sequence[int]]) -> bool:
        """Whether topics end where they did; partitions that were added later are nobody's."""
        return all(
            tuple(ends.get(role, ()))[: len(known)] == known for role, known in self.ends.items()
        )


def rest_before_all(job: DeployedJob, stage: str) -> IdleCondition | None:
    """The rest of a stage as long as nothing has been written since its job was deployed.

    None where a clock alone may say that there is something to do: epochs of devices end also when
    nobody reports.
    """
    if job.devices is not None and job.stages[stage] is Role.REPORTS:
        return None
    roles = waking_roles(job, stage)
    return IdleCondition({role: tuple(job.start_offsets[role]) for role in roles})
