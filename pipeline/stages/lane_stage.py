"""The shuffle stage of a job whose epochs lie in lanes: one decision, each lane by itself.

A producer divides an epoch among the lanes: every report goes to one drawn at random whatever it
says. Lane 1 of epoch e lies in partition e mod P, where all of it would lie without lanes, lane 2
in the next one, and so on. They are parts of a window as those of shuffle instances side by side
are, but for their place: other partitions of one topic, which workers of one stage share.

So whoever owns a partition is two stages there. For the epochs whose first lane it has, it is a
`ShuffleStage`, which decides for all lanes; a producer sends that lane last, when the others are
acknowledged, so who is complete there is complete everywhere. For the others it is an
`InstanceStage`, which writes a lane under that decision, wherever it was made. Both read the
partition, and neither forgets what the other still needs: committed and deleted is what lies below
the floors of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pipeline.actions import Action, Commit, DeleteBelow, Steps, replacing
from pipeline.stages.instance_stage import InstanceStage
from pipeline.stages.shuffle_stage import ShuffleStage


@dataclass(slots=True)
class _Floors:
    """Of one partition: below what neither needs anything, as far as that was said and done.

    Attributes:
        first: of the stage that decides.
        others: of the one that writes the lanes beside the first.
        committed: the lower of both.
        deleted: below which records were.
    """

    first: int
    others: int
    committed: int
    deleted: int


class LaneStage:
    """Turns the batches of ``<job>.reports`` into the chunks of ``<job>.shuffled``, lane by lane.

    Args:
        first: decides windows, and writes their first lanes.
        others: writes their other lanes.
    """

    def __init__(self, first: ShuffleStage, others: InstanceStage) -> None:
        self.role = first.role
        self._first = first
        self._others = others
        self._floors: dict[int, _Floors] = {}

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """See `Stage`: both take the partition over."""
        self.revoke(partition)
        floor = yield from self._first.assign(partition, committed, now)
        yield from self._others.assign(partition, committed, now)
        self._floors[partition] = _Floors(floor, floor, floor, floor)
        return floor

    def revoke(self, partition: int) -> None:
        """See `Stage`."""
        self._floors.pop(partition, None)
        self._first.revoke(partition)
        self._others.revoke(partition)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """See `Stage`: both are shown every record, and take those of their lanes."""
        for each in (self._first, self._others):
            yield from replacing(
                each.record(partition, offset, value, now, written), partial(self._pass_on, each)
            )

    def tick(self, now: float) -> Steps[None]:
        """See `Stage`."""
        for each in (self._first, self._others):
            yield from replacing(each.tick(now), partial(self._pass_on, each))

    def rests(self) -> float | None:
        """See `Stage.rests`: both have nothing left to do."""
        first, others = self._first.rests(), self._others.rests()
        return None if first is None or others is None else min(first, others)

    def unfinished(self, partition: int) -> str:
        """See `Stage`."""
        first, others = self._first.unfinished(partition), self._others.unfinished(partition)
        return f"of first lanes {first}; of others {others}"

    def heartbeat(self) -> Mapping[str, object]:
        """What the stage that decides says, and how many lanes are open and written beside it."""
        said, others = self._first.heartbeat(), self._others.heartbeat()
        counts = self._first.counts + self._others.counts
        if said["hides_messages"]:
            # Devices are counted, and those of the first lane are those of all.
            counts["reports"] = self._first.counts["reports"]
        counts["lanes"] = counts.pop("windows", 0)
        return {**said, "open_lanes": others["open_windows"], "counts": dict(counts)}

    def _pass_on(self, stage: ShuffleStage | InstanceStage, action: Action) -> Steps[object]:
        """An action of one of both; of floors, the lower one."""
        if not isinstance(action, Commit | DeleteBelow):
            return (yield action)
        floors = self._floors.get(action.partition)
        if floors is None:
            return None
        if isinstance(action, DeleteBelow):
            if floors.committed > floors.deleted:
                floors.deleted = floors.committed
                yield DeleteBelow(action.role, action.partition, floors.deleted)
            return None
        if stage is self._first:
            floors.first = action.offset
        else:
            floors.others = action.offset
        lower = min(floors.first, floors.others)
        if lower > floors.committed:
            floors.committed = lower
            yield Commit(action.role, action.partition, lower)
        return None
