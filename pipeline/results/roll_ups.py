"""Means and sums of published estimates over windows of consecutive epochs, such as days of hours.

They and their intervals are functions of published estimates: no other data is read, and no privacy
is spent. The same records give the same numbers, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import INCOMPLETE, NORMAL_95, Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.aggregators.window_errors import IndependentWindows, WindowErrors
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus


class RollUpError(DpstreamError):
    """A job's estimates do not support means over a window; the message states why."""


@dataclass(frozen=True, slots=True)
class WindowRecord(EstimateRecord):
    """Mean or sum over a window.

    `epoch` is the last epoch of the window. `reports` is the sum over its epochs. Contributors and
    population are rounded means over its epochs with an estimate.

    Attributes:
        first_epoch: First epoch of the window.
        averaged: Number of epochs with an estimate; `estimate` is the mean or sum of these.
    """

    first_epoch: int = field(kw_only=True)
    averaged: int = field(kw_only=True)

    def to_json(self) -> dict[str, Any]:
        window = {"first_epoch": self.first_epoch, "averaged_epochs": self.averaged}
        return {**EstimateRecord.to_json(self), **window}


def check_window(job: DeployedJob, epochs: int) -> None:
    problem = job.window_problem(job.law, epochs)
    if problem is not None:
        raise RollUpError(f"job {job.name}, windows of {epochs:,} epochs: {problem}")


class RollUps:
    """Means over windows of epochs, from records in the order of publication.

    With `sums`, these are sums. A sum is unknown if an epoch of its window has no estimate.

    Windows follow one another from epoch `first` on, by default from epoch 1. If estimates build on
    earlier estimates, all records of the window's horizon are required.
    """

    def __init__(
        self, job: DeployedJob, epochs: int, first: int = 1, *, sums: bool = False
    ) -> None:
        check_window(job, epochs)
        self._job, self._epochs, self._first, self._sums = job, epochs, first, sums
        aggregation = job.protocol_entry.aggregation
        errors = aggregation.window_errors(job.law, job.parameters)
        self._errors: WindowErrors = errors or IndependentWindows()
        self._before = 0
        self._known = True
        self._open()

    def next(self, record: EstimateRecord) -> WindowRecord | None:
        """Process the next epoch; return the mean at the last epoch of a window."""
        epoch, horizons = record.epoch, self._job.epochs
        if horizons.horizon_of(epoch) != horizons.horizon_of(max(1, self._before)):
            self._errors.open_horizon()
        # Errors that depend on the error of an unknown epoch are unknown, too.
        whole = not self._errors.from_start or horizons.local(epoch) == 1
        self._known = whole or (self._known and epoch == self._before + 1)
        self._before = epoch
        start = epoch - (epoch - self._first) % self._epochs
        if start != self._start:
            self._open(start)
        if self._known:
            self._add(record)
        if epoch < max(self._first, start + self._epochs - 1):
            return None
        return self._mean(record, start)

    def _open(self, start: int = 0) -> None:
        self._start = start
        self._sum: NDArray[np.float64] | None = None
        self._records: list[tuple[int, int, int]] = []
        self._estimates: list[ItemEstimates | PanelEstimates] = []
        self._flags: dict[str, None] = {}
        self._errors.open_window()

    def _add(self, record: EstimateRecord) -> None:
        estimate = record.estimate
        rows = isinstance(estimate, PanelEstimates)
        if estimate is not None and estimate.single is None and not rows:
            estimate = estimate.listed()
        self._errors.next(estimate, record.population)
        if estimate is None or not estimate.intervals.size:
            return
        values = estimate.values if isinstance(estimate, PanelEstimates) else estimate.intervals[0]
        self._sum = values if self._sum is None else self._sum + values
        self._records.append((estimate.reports, record.contributors, record.population))
        self._flags |= dict.fromkeys(estimate.flags)
        if isinstance(estimate, ItemEstimates | PanelEstimates):
            self._estimates.append(estimate)

    def _mean(self, record: EstimateRecord, start: int) -> WindowRecord:
        averaged = len(self._records)
        reports, contributors, population = 0, 0, record.population
        if averaged:
            sums = np.sum(self._records, axis=0).tolist()
            reports = sums[0]
            contributors, population = (round(each / averaged) for each in sums[1:])
        released = WindowStatus.RELEASED if averaged else record.window_status
        about = {each.name: getattr(record, each.name) for each in fields(EstimateRecord)}
        about |= {"window_status": released, "contributors": contributors, "population": population}
        about["estimate"] = self._estimate(reports, population)
        return WindowRecord(**about, first_epoch=start, averaged=averaged)

    def _estimate(self, reports: int, population: int) -> Published | None:
        averaged = len(self._records)
        if self._sum is None:
            return None
        divisor = float(averaged)
        if self._sums:
            divisor = 1 if averaged == self._epochs else math.nan
        values = self._sum / divisor
        incomplete = () if averaged == self._epochs else (INCOMPLETE,)
        about = reports, population, (*self._flags, *incomplete)
        last = self._estimates[-1] if self._estimates else None
        if isinstance(last, PanelEstimates):
            rows = (each for each in self._estimates if isinstance(each, PanelEstimates))
            hidden = frozenset[int]().union(*(each.hidden for each in rows))
            deviations = np.sqrt(self._errors.variance) / divisor
            return last.mean_of(values, deviations, *about, hidden)
        deviation = math.sqrt(float(self._errors.variance)) / divisor
        width = NORMAL_95 * deviation
        if self._job.domain.kind == "value":
            return Estimate.around(float(values[0]), deviation, width, *about)
        mean = ItemEstimates(values, deviation, width, *about)
        assert last is not None
        items = [each for each in self._estimates if isinstance(each, ItemEstimates)]
        return last.of_window(mean, items)


def roll_ups(
    job: DeployedJob, records: Iterable[EstimateRecord], epochs: int, *, sums: bool = False
) -> Iterator[WindowRecord]:
    windows = RollUps(job, epochs, sums=sums)
    return (mean for record in records if (mean := windows.next(record)) is not None)


def window_mean(
    job: DeployedJob, records: Iterable[EstimateRecord], first: int, last: int
) -> WindowRecord:
    if not 1 <= first <= last:
        raise RollUpError(f"epochs {first} to {last}: expected 1 <= first <= last")
    windows = RollUps(job, last - first + 1, first)
    mean = None
    for record in records:
        if record.epoch <= last:
            mean = windows.next(record)
    if mean is None or mean.epoch != last:
        raise RollUpError(
            f"epoch {last:,} of job {job.name} is not published yet. Query earlier epochs"
        )
    if mean.estimate is None:
        raise RollUpError(f"job {job.name}: epochs {first:,} to {last:,} have no estimates")
    return mean
