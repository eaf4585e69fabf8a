"""The records of ``<job>.estimates``: what is published of every epoch, for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregators.estimate import Estimate, ItemEstimates
from aggregators.found_items import FoundItems
from aggregators.level_estimates import LevelEstimates
from aggregators.published import Published
from aggregators.range_estimates import RangeEstimates
from pipeline.deployed_job import DeployedJob
from pipeline.epochs import EpochSet
from pipeline.job_range import EPOCHS_AHEAD, epoch_problem
from topics.frames import CodecError
from topics.manifests import Fate

VERSION = 1


@dataclass(frozen=True, slots=True)
class EstimateRecord:
    """The final word on one epoch.

    Attributes:
        deployment: 16 bytes.
        epoch: from 1 on.
        fate: what became of the epoch's window.
        closed_at: when the window was decided, milliseconds since 1970.
        contributors: devices in the window.
        population: devices enrolled.
        estimate: None for protocols that cannot say anything about an epoch not released.
        guarantee: the `Guarantee` of the job, as JSON.
    """

    deployment: bytes
    epoch: int
    fate: Fate
    closed_at: int
    contributors: int
    population: int
    estimate: Published | None
    guarantee: Mapping[str, Any]

    @property
    def largest_item(self) -> int | None:
        """Index of the item with the largest estimate; None where there are no items."""
        return self.estimate.largest if isinstance(self.estimate, ItemEstimates) else None

    def item_note(self, labels: Sequence[str] | None) -> tuple[str, ...]:
        """Which item `headline` is about: one note, or none where there are no items."""
        largest = self.largest_item
        return () if largest is None or labels is None else (f"{labels[largest]}, the largest",)

    @property
    def headline(self) -> Estimate | None:
        """The estimate, or that of the item with the largest one."""
        if isinstance(self.estimate, ItemEstimates):
            return self.estimate.item(self.estimate.largest)
        if isinstance(self.estimate, FoundItems):
            return self.estimate.headline
        return self.estimate

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "version": VERSION,
            "deployment": self.deployment.hex(),
            "epoch": self.epoch,
            "fate": self.fate.value,
            "closed_at": self.closed_at,
            "contributors": self.contributors,
            "population": self.population,
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            "guarantee": dict(self.guarantee),
        }

    def to_bytes(self) -> bytes:
        """The record's value: JSON, keys sorted, no spaces; equal records have equal bytes."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> EstimateRecord:
        """Read a record's value.

        Raises:
            CodecError: it is not a record of a version that this software knows.
        """
        try:
            body = json.loads(value)
            if body["version"] != VERSION:
                raise CodecError(
                    f"estimate record of version {body['version']!r}, this software reads {VERSION}"
                )
            return cls(
                deployment=bytes.fromhex(body["deployment"]),
                epoch=int(body["epoch"]),
                fate=Fate(body["fate"]),
                closed_at=int(body["closed_at"]),
                contributors=int(body["contributors"]),
                population=int(body["population"]),
                estimate=_estimate(body["estimate"]),
                guarantee=dict(body["guarantee"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(f"not an estimate record: {error!r}") from error


def _estimate(body: Mapping[str, Any] | None) -> Published | None:
    if body is None:
        return None
    if "found" in body:
        return FoundItems.from_json(body)
    if "level_variances" in body:
        return RangeEstimates.from_json(body)
    if "branching" in body:
        return LevelEstimates.from_json(body)
    return ItemEstimates.from_json(body) if "items" in body else Estimate.from_json(body)


class FirstEstimates:
    """The estimates of one deployment: the first record of an epoch is the estimate.

    Records of other deployments are passed over, and so are those of epochs that the job does not
    have, or that lie more than `EPOCHS_AHEAD` beyond the first gap: they are published in order.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self.epochs = EpochSet()

    def apply(self, value: bytes) -> EstimateRecord | None:
        """Take in one record of the topic; returns it if it is the first of its epoch."""
        try:
            record = EstimateRecord.from_bytes(value)
        except CodecError:
            return None
        if record.deployment != self._job.deployment:
            return None
        if epoch_problem(self._job, record.epoch) is not None or self._too_far(record.epoch):
            return None
        if not self.epochs.add(record.epoch):
            return None
        return record

    def _too_far(self, epoch: int) -> bool:
        known = self.epochs
        return bool(known) and epoch > known.first_missing(known.lowest) + EPOCHS_AHEAD
