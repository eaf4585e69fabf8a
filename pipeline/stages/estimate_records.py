"""Records of ``<job>.estimates``: one published result per epoch, kept forever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from math import isfinite
from typing import Any, Final, Protocol

from dpstream.aggregators.estimate import Estimate, Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import LAST_MOMENT
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD, epoch_problem
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import WindowStatus

VERSION = 1
# Shared by all records, and used without detecting the encoding, to save time.
_READER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class EstimateRecord:
    """The published, final record of one epoch.

    Attributes:
        closed_at: Time when the window was finalized, in milliseconds since 1970.
        contributors: Number of devices in the window.
        population: Number of devices enrolled.
        estimate: Published estimate; None if the protocol cannot estimate without a release.
        reason: Reason why the window is corrupt; None otherwise.
        assumes_changes: Maximum number of changes per user for which intervals hold; None if they
            hold for any stream of values.
    """

    deployment: bytes
    epoch: int
    window_status: WindowStatus
    closed_at: int
    contributors: int
    population: int
    estimate: Published | None
    guarantee: Mapping[str, Any]
    reason: str | None = field(default=None, kw_only=True)
    assumes_changes: int | None = field(default=None, kw_only=True)

    @property
    def headline(self) -> Estimate | None:
        return None if self.estimate is None else self.estimate.headline

    @property
    def summary(self) -> Estimate:
        """Headline estimate; if the record has no estimate, an estimate without numbers."""
        return self.headline or Estimate(None, None, None, None, 0, self.population)

    @property
    def flags(self) -> tuple[str, ...]:
        return () if self.estimate is None else self.estimate.flags

    @property
    def notes(self) -> list[str]:
        """Warnings for readers: status of a window that was not released, and flags."""
        averaged = None if self.estimate is None else self.estimate.averaged
        epochs = "epoch" if averaged == 1 else "epochs"
        window_status = (
            self.window_status.value
            if self.reason is None
            else f"{self.window_status.value}: {self.reason}"
        )
        return [
            *([] if self.window_status is WindowStatus.RELEASED else [window_status]),
            *([] if averaged is None else [f"mean of {averaged:,} {epochs}"]),
            *self.flags,
        ]

    def shown_to_readers_of(self, job: DeployedJob) -> EstimateRecord:
        """Return the record without the rows that the job does not show at its epoch."""
        starts, estimate = job.first_shown, self.estimate
        if starts is None or not isinstance(
            estimate, _several("panel_estimates", "PanelEstimates")
        ):
            return self
        if not estimate.may_be_of(len(starts)):
            return self
        return replace(self, estimate=estimate.hiding(starts > self.epoch))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "deployment": self.deployment.hex(),
            "epoch": self.epoch,
            "window_status": self.window_status.value,
            "closed_at": self.closed_at,
            "contributors": self.contributors,
            "population": self.population,
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            "guarantee": dict(self.guarantee),
            **({} if self.reason is None else {"reason": self.reason}),
            **({} if self.assumes_changes is None else {"assumes_changes": self.assumes_changes}),
        }

    def to_bytes(self) -> bytes:
        """Encode as JSON with sorted keys and no spaces; equal records have equal bytes."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> EstimateRecord:
        try:
            body = _READER.decode(value.decode())
            if body["version"] != VERSION:
                raise CodecError(
                    f"estimate record: got version {body['version']!r}; expected {VERSION}"
                )
            record = cls(
                deployment=bytes.fromhex(body["deployment"]),
                epoch=int(body["epoch"]),
                window_status=WindowStatus(body["window_status"]),
                closed_at=int(body["closed_at"]),
                contributors=int(body["contributors"]),
                population=int(body["population"]),
                estimate=_estimate(body["estimate"]),
                guarantee=dict(body["guarantee"]),
                reason=None if "reason" not in body else str(body["reason"]),
                assumes_changes=body.get("assumes_changes"),
            )
            record._check()
            return record
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(f"not an estimate record: {error!r}") from error

    def _check(self) -> None:
        """Raise `ValueError` for invalid content, which another program may have written."""
        if not 0 <= self.closed_at <= LAST_MOMENT:
            raise ValueError(f"'closed_at' is {self.closed_at}; expected a time before year 10000")
        if min(self.contributors, self.population) < 0:
            raise ValueError("'contributors' and 'population' must be at least 0")
        (self.reason or "").encode()
        for name in ("epsilon", "delta"):
            number = self.guarantee.get(name)
            if number is not None and not (type(number) in (int, float) and isfinite(number)):
                raise ValueError(f"'{name}' is {number!r}; expected a finite number")
        changes = self.assumes_changes
        if changes is not None and not (type(changes) is int and 0 <= changes < 1 << 63):
            raise ValueError(f"'assumes_changes' is {changes!r}; expected an integer of at least 0")
        unit = self.guarantee.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise ValueError(f"'unit' is {unit!r}; expected a string")


_BY_KEY: Final = {
    "crowds": ("crowd_estimates", "CrowdEstimates"),
    "rows": ("panel_estimates", "PanelEstimates"),
    "found": ("heavy_hitters", "HeavyHitters"),
    "asked_levels": ("sampled_ranges", "SampledRanges"),
    "level_variances": ("range_estimates", "RangeEstimates"),
    "branching": ("level_estimates", "LevelEstimates"),
    "items": ("item_estimates", "ItemEstimates"),
}
"""Module and class of each kind of estimate, by its key in JSON; the first match decides."""


def _estimate(body: Mapping[str, Any] | None) -> Published | None:
    if body is None:
        return None
    several = next((kind for key, kind in _BY_KEY.items() if key in body), None)
    return Estimate.from_json(body) if several is None else _several(*several).from_json(body)


@cache
def _several(module: str, kind: str) -> Any:
    return getattr(import_module(f"dpstream.aggregators.{module}"), kind)


class EstimateListener(Protocol):
    @property
    def reads_horizon(self) -> bool: ...

    def start_over(self) -> None:
        """Expect the records published so far once more."""

    def next(self, record: EstimateRecord) -> None: ...


def shown_json(estimate: Published | None) -> dict[str, Any] | None:
    """Return an estimate as JSON values; hidden rows have no number."""
    if isinstance(estimate, _several("panel_estimates", "PanelEstimates")):
        estimate = estimate.shown
    return None if estimate is None else estimate.to_json()


def own_estimate(job: DeployedJob, value: bytes) -> EstimateRecord | None:
    try:
        record = EstimateRecord.from_bytes(value)
    except CodecError:
        return None
    own = record.deployment == job.deployment and epoch_problem(job, record.epoch) is None
    return record.shown_to_readers_of(job) if own else None


class FirstEstimates:
    """Estimates from one deployment: the first record for an epoch is the estimate.

    Epochs are published in order, so records more than `EPOCHS_AHEAD` beyond the first gap are
    skipped. Epochs up to `before` count as published; their records are not read.
    """

    def __init__(self, job: DeployedJob, before: int = 0) -> None:
        self._job = job
        self.epochs = EpochSet.up_to(before)

    def apply(self, value: bytes) -> EstimateRecord | None:
        record = own_estimate(self._job, value)
        if record is None or self._too_far(record.epoch) or not self.epochs.add(record.epoch):
            return None
        return record

    def _too_far(self, epoch: int) -> bool:
        known = self.epochs
        return bool(known) and epoch > known.first_missing(known.lowest) + EPOCHS_AHEAD
