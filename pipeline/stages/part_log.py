"""Where the parts of decided windows lie: what is said of each that is not the first one's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.actions import LogRecord
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.stages.decision_log import DecisionLog
from pipeline.stages.epochs import EpochSet
from topics.frames import CodecError
from topics.manifest_parts import decode_part, is_part
from topics.manifests import decode_manifest


@dataclass(frozen=True, slots=True)
class PartPlace:
    """What a record says of a part.

    Attributes:
        epoch: of the window.
        instance: of the shuffle stage, or lane.
        first_offset: of the part's first record, in its own topic or partition.
        cut_offset: first offset that no longer belongs to it.
        decision: offset of the decision, where that is named.
    """

    epoch: int
    instance: int
    first_offset: int
    cut_offset: int
    decision: int | None


class PartLog:
    """Reads what is said of parts in a manifest log; of each the first word counts.

    Of windows that are not decided, or by another manifest than the one that a record names,
    nothing counts.

    Args:
        job: the deployed job.
        decisions: is shown every record before this log is.
        numbers: of the parts that are wanted, from 2 on.
        on_part: is shown each, with its record.
    """

    def __init__(
        self,
        job: DeployedJob,
        decisions: DecisionLog,
        numbers: Iterable[int],
        on_part: Callable[[PartPlace, LogRecord], None],
    ) -> None:
        self._identity = job.fingerprint, job.deployment
        self._decisions = decisions
        self._said = {number: EpochSet() for number in numbers}
        self._on_part = on_part

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        try:
            place = self._place(record.value)
        except CodecError:
            return
        if place is None or place.instance not in self._said:
            return
        if place.epoch not in self._decisions.decided:
            return
        outcome = self._decisions.recent(place.epoch)
        if outcome is not None and place.decision not in (None, outcome.offset):
            return
        if self._said[place.instance].add(place.epoch):
            self._on_part(place, record)

    def _place(self, record: bytes) -> PartPlace | None:
        """What a record says of a part; None: it is of no part, or not of this deployment."""
        if is_part(record):
            part = decode_part(record)
            said = part.fingerprint, part.deployment
            place = PartPlace(
                part.epoch, part.instance, part.first_offset, part.cut_offset, part.decision
            )
        else:
            copy = decode_manifest(record)
            said = copy.fingerprint, copy.deployment
            place = PartPlace(copy.epoch, copy.instance, copy.first_offset, copy.cut_offset, None)
        return place if said == self._identity and place.instance > 1 else None
