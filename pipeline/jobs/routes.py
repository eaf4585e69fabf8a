"""The route of a job's reports: its stages, and the topics that devices and stages write.

A plain job has one shuffler between reports and aggregator. Chained shufflers each read what the
previous one wrote. Parallel shufflers each read a part of what every device sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dpstream.topics.names import SUMS, Role

SHARERS: Final = ("aggregate-a", "aggregate-b")
"""Party and stage names of the two aggregators in a job with shares."""


@dataclass(frozen=True, slots=True)
class Route:
    """Topics that reports pass through on their way to the aggregator.

    Attributes:
        reports: One topic per parallel shuffler; the reader of the first one finalizes windows.
        hops: Topics between chained shufflers, in order; empty for a single shuffler.
        shared: True if two aggregators each sum one share of every count table.
    """

    reports: tuple[Role, ...] = (Role.REPORTS,)
    hops: tuple[Role, ...] = ()
    shared: bool = False

    @property
    def stages(self) -> dict[str, Role]:
        parallel = {instance_name(number): role for number, role in enumerate(self.reports, 1)}
        chained = {shuffle_stage_name(index): role for index, role in enumerate(self.hops, 1)}
        sharers = dict.fromkeys(SHARERS if self.shared else (), Role.SHUFFLED)
        added = SUMS[0] if self.shared else Role.SHUFFLED
        return {**parallel, **chained, **sharers, "aggregate": added, "publish": Role.PARTIALS}

    @property
    def shuffled(self) -> tuple[Role, ...]:
        return (*self.reports, *self.hops)

    @property
    def decided(self) -> Role:
        """Topic that lists the contents of windows, written by the shuffler that finalizes them."""
        return self.output(0)

    def output(self, index: int) -> Role:
        """Return the topic that a chained shuffler writes to; shuffler 0 writes windows instead."""
        return Role.SHUFFLED if index == len(self.hops) else self.hops[index]

    def later_shufflers(self, role: Role) -> range:
        """Return the indices of the chained shufflers that receive a topic's reports later."""
        passed = 0 if role in self.reports else (*self.hops, Role.SHUFFLED).index(role) + 1
        return range(max(1, passed), len(self.hops) + 1)


def stage_party(index: int) -> str:
    """Return the party name of a shuffler; `index` 0 is the shuffler that finalizes windows."""
    return f"stage {index + 1}"


def shuffle_stage_name(index: int) -> str:
    """Return a chained shuffler's name for ``dpstream run``; 0 is the first in the chain."""
    return "shuffle" if index == 0 else f"shuffle-{index + 1}"


def instance_name(instance: int) -> str:
    """Return a parallel shuffler's name for ``dpstream run``; shuffler 1 is called "shuffle"."""
    return "shuffle" if instance == 1 else f"instance-{instance}"
