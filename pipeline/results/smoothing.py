"""Retrospective smoothing: estimates of every epoch from the reports of all epochs so far.

Manifests and partials are kept forever, so a horizon can be smoothed at any time, during and after
a job. Horizons are independent.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Estimate, Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.actions import Steps
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.topics.manifests import WindowStatus

Array: TypeAlias = NDArray[np.float64]

UNBIASED = ("online", "smoothed")
BIASED = ("online clipped", "online shrunk", "smoothed clipped", "smoothed shrunk")
"""Estimates that are often closer to the ground truth, but biased: always label them as such."""
WITHOUT_INTERVALS = (
    "biased estimates have no intervals: their model's intervals hold on average over epochs, but "
    "rarely where a count jumps"
)
NAMES = tuple(sorted(UNBIASED + BIASED))
"""Names of all estimates; each unbiased estimate precedes the biased estimates derived from it."""


class SmoothingError(DpstreamError):
    """There are no estimates to smooth; the message states why."""


@typing.runtime_checkable
class Smoother(typing.Protocol):
    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        """Return estimates for epochs 1 to `last_epoch` from everything added so far."""


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedHorizon:
    """Smoothed estimates of one horizon, up to its last finalized and aggregated epoch.

    `first_epoch` is the job's epoch at which the horizon starts.
    """

    first_epoch: int
    estimates: SmoothedEstimates
    domain: ValueDomain = BOOLEAN

    def index(self, epoch: int) -> int | None:
        index = epoch - self.first_epoch
        return index if 0 <= index < len(self.estimates.values) else None

    def estimate(self, index: int, reports: int) -> Estimate | ItemEstimates:
        return kind_of(self.domain).smoothed_estimate(self.estimates, index, reports)


def smoothed_horizon(job: DeployedJob, number: int | None = None) -> Steps[SmoothedHorizon]:
    """Read the manifests and partials of a deployment, and smooth one horizon.

    `number` is 1 for the first horizon; the default is the horizon of the latest epoch. Raises
    `SmoothingError` if the protocol does not support smoothing, or no epoch of the horizon is
    finalized and aggregated.
    """
    if not isinstance(job.aggregator(), Smoother):
        raise SmoothingError(f"protocol {job.protocol} does not support smoothing")
    epochs, estimation = EpochLog(job), Estimation(job)
    yield from epochs.find_end()
    while (decided := (yield from epochs.next())) is not None:
        of = job.horizons_until(decided.epoch, decided.manifest.first_epoch)
        if number is not None and of > number:
            break
        if number is None or of == number:
            estimation.take_in(decided.manifest, decided.counts)
    if not estimation.last_epoch:
        which = "" if number is None else f" in horizon {number}"
        raise SmoothingError(f"job {job.name} has no finished epoch{which} yet")
    return smooth_estimation(job, estimation)


def smoothed_horizons(job: DeployedJob, last_epoch: int) -> Steps[dict[int, SmoothedHorizon]]:
    """Read a deployment once, and smooth every horizon up to the one with epoch `last_epoch`.

    Returns all horizons with a finalized and aggregated epoch, by number from 0; empty if the
    protocol does not support smoothing.
    """
    horizons: dict[int, SmoothedHorizon] = {}
    if not isinstance(job.aggregator(), Smoother):
        return horizons
    epochs, estimation = EpochLog(job), Estimation(job)
    yield from epochs.find_end()
    while (decided := (yield from epochs.next())) is not None:
        of = job.epochs.horizon_of(decided.epoch)
        if of > job.epochs.horizon_of(last_epoch):
            break
        if of != estimation.horizon and estimation.last_epoch:
            horizons[estimation.horizon] = smooth_estimation(job, estimation)
        estimation.take_in(decided.manifest, decided.counts)
    if estimation.last_epoch:
        horizons[estimation.horizon] = smooth_estimation(job, estimation)
    return horizons


def smooth_estimation(job: DeployedJob, estimation: Estimation) -> SmoothedHorizon:
    assert isinstance(estimation.aggregator, Smoother)
    return SmoothedHorizon(
        first_epoch=estimation.horizon * job.epochs.count + 1,
        estimates=estimation.aggregator.smoothed(estimation.last_epoch, estimation.participation),
        domain=job.domain,
    )


def smoothed_records(
    records: Iterable[EstimateRecord], horizon: SmoothedHorizon
) -> list[EstimateRecord]:
    indexed = [
        (record, index) for record in records if (index := horizon.index(record.epoch)) is not None
    ]
    reports = sum(
        each.contributors for each, _ in indexed if each.window_status is WindowStatus.RELEASED
    )
    return [replace(each, estimate=horizon.estimate(index, reports)) for each, index in indexed]


def columns(record: EstimateRecord, horizon: SmoothedHorizon | None) -> dict[str, Array]:
    """Return all estimates for an epoch, by the names in `UNBIASED` and `BIASED`.

    Each has values, lows and highs, shape (3, counts); NaN without an interval. Without the epoch's
    smoothed horizon, there are only online estimates.
    """
    by_name: dict[str, Array] = {}

    def put(name: str, intervals: Array, shrunk: Array | None = None) -> None:
        by_name[name] = intervals
        by_name[f"{name} clipped"] = np.clip(intervals, 0.0, record.population)
        if shrunk is not None:
            within = np.clip(shrunk, 0.0, record.population)
            by_name[f"{name} shrunk"] = np.stack([within, *np.full((2, len(within)), np.nan)])

    index = None if horizon is None else horizon.index(record.epoch)
    smoothed = None if horizon is None or index is None else horizon.estimates
    if record.estimate is not None and record.estimate.intervals.size:
        shrunk = None if smoothed is None else smoothed.online_shrunk
        put("online", record.estimate.intervals, _row(shrunk, index))
    if smoothed is not None:
        width = smoothed.half_widths[index] * np.array([[0.0], [-1.0], [1.0]])
        put("smoothed", smoothed.values[index] + width, _row(smoothed.shrunk, index))
    return by_name


def _row(values: Array | None, index: int | None) -> Array | None:
    return None if values is None or index is None else values[index]


def epoch_json(record: EstimateRecord, horizon: SmoothedHorizon | None) -> dict[str, Any]:
    """Return the additions to an epoch's JSON: ``smoothed``, and ``biased`` estimates by name."""
    by_name = columns(record, horizon)
    index = None if horizon is None else horizon.index(record.epoch)
    smoothed = None
    if horizon is not None and index is not None:
        smoothed = {
            **_values_json(by_name["smoothed"]),
            "standard_error": float(horizon.estimates.standard_errors[index]),
            "flags": [GAP] if horizon.estimates.gaps[index] else [],
        }
    return {
        "smoothed": smoothed,
        "biased": {name: _values_json(by_name[name]) for name in BIASED if name in by_name},
    }


def _values_json(intervals: Array) -> dict[str, Any]:
    if intervals.shape[1] > 1:
        return {"items": np.round(intervals[0], 1).tolist()}
    value, low, high = intervals[:, 0].tolist()
    return {"estimate": value} | ({} if np.isnan(low) else {"ci95_low": low, "ci95_high": high})
