"""Run a whole job in one process: the real randomizer, codec and stages on topics in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import groups_of
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster, seeded_generators
from dpstream.pipeline.results.counts_queries import CountsQuery
from dpstream.pipeline.results.coverage import coverage_over_time
from dpstream.pipeline.results.measure_series import MeasuredError, measured_errors
from dpstream.pipeline.results.smoothing import (
    SmoothedHorizon,
    columns,
    epoch_json,
    smoothed_horizons,
    smoothed_records,
)
from dpstream.pipeline.simulation.item_accuracy import (
    ItemAccuracy,
    ItemComparison,
    compares_items,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.item_domains import MOST_PUBLISHED


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """Estimates from a simulated job, with the ground truth.

    Attributes:
        ground_truth: By epoch, the number of devices with value 1, shape (epochs + 1,), or with
            each item, shape (epochs + 1, items); int64, 0 at index 0. No items if epochs are
            independent and only some items are published.
        exhausted: Number of devices that dropped a change, in the horizon with the most of these.
        smoothed: Smoothed horizons by index, if requested and supported by the protocol.
        accuracies: Accuracy by epoch, if epochs are independent.
    """

    job: DeployedJob
    records: tuple[EstimateRecord, ...]
    ground_truth: NDArray[np.int64]
    exhausted: int
    smoothed: Mapping[int, SmoothedHorizon] = field(default_factory=dict)
    accuracies: Mapping[int, ItemAccuracy] = field(default_factory=dict)

    def columns(self) -> Iterator[tuple[EstimateRecord, dict[str, NDArray[np.float64]]]]:
        """Yield each epoch's record with all estimates, in the format of `smoothing.columns`."""
        for record in self.records:
            yield record, columns(record, self._horizon(record.epoch))

    def smoothed_copy(self) -> Simulation:
        """Return a copy with smoothed estimates, or this object if nothing was smoothed."""
        if not self.smoothed:
            return self
        found = (smoothed_records(self.records, each) for each in self.smoothed.values())
        return replace(self, records=tuple(record for records in found for record in records))

    def _horizon(self, epoch: int) -> SmoothedHorizon | None:
        return self.smoothed.get(self.job.epochs.horizon_of(epoch))

    def errors(self) -> NDArray[np.float64]:
        """Return estimate minus ground truth of all compared estimates, shape (estimates,)."""
        if self.accuracies:
            return np.concatenate([each.errors for each in self.accuracies.values()])
        errors = [published[0] - ground_truth for _, published, ground_truth in self._compared()]
        return np.concatenate([np.zeros(0), *errors])

    def covered(self) -> NDArray[np.bool_]:
        held = [held for _, held in self.covered_by_epoch()]
        return np.concatenate([np.zeros(0, np.bool_), *held])

    def covered_by_epoch(self) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        if self.accuracies:
            for epoch, accuracy in self.accuracies.items():
                yield epoch, accuracy.covered
            return
        for epoch, (_, low, high), ground_truth in self._compared():
            yield epoch, (low <= ground_truth) & (ground_truth <= high)

    def _compared(self) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.int64]]]:
        """Yield each epoch, estimates (value, low, high), shape (3, n), and ground truth (n,)."""
        for record in self.records:
            if record.estimate is not None and record.estimate.intervals.size:
                ground_truth = np.atleast_1d(self.ground_truth[record.epoch])
                # All items, except those of suppressed crowds.
                numbers = record.estimate.numbers
                yield record.epoch, record.estimate.intervals, ground_truth[numbers - 1]

    def to_json(self) -> dict[str, Any]:
        spans = EpochSpans(self.job)
        return {
            "job": self.job.name,
            "guarantee": self.job.guarantee,
            "assumes_changes": self.job.assumes_changes,
            "rmse": root_mean_square([self]),
            "coverage": coverage([self]),
            "coverage_over_time": coverage_over_time(self.covered_by_epoch()),
            **({"rmse_by_column": column_errors([self])} if self.smoothed else {}),
            "epochs": [
                spans.dated(self._epoch_json(record))
                | (epoch_json(record, self._horizon(record.epoch)) if self.smoothed else {})
                for record in self.records
            ],
        }

    def _epoch_json(self, record: EstimateRecord) -> dict[str, Any]:
        estimate = record.estimate
        if self.accuracies:
            return {
                "epoch": record.epoch,
                "window_status": record.window_status.value,
                "contributors": record.contributors,
                "population": record.population,
                "flags": list(record.flags),
                **self.accuracies[record.epoch].to_json(),
            }
        if self.ground_truth.ndim > 1:
            return {
                "epoch": record.epoch,
                "window_status": record.window_status.value,
                **({} if estimate is None else estimate.to_json()),
                "ground_truth": self.ground_truth[record.epoch].tolist(),
                "population": record.population,
            }
        one = record.summary
        return {
            "epoch": record.epoch,
            "window_status": record.window_status.value,
            "estimate": one.value,
            "standard_error": one.standard_error,
            "ci95_low": one.ci95_low,
            "ci95_high": one.ci95_high,
            "ground_truth": int(self.ground_truth[record.epoch])
            if self.ground_truth.ndim == 1
            else None,
            "reports": one.reports,
            "population": record.population,
            "flags": list(one.flags),
        }


def root_mean_square(simulations: Sequence[Simulation]) -> float | None:
    errors = np.concatenate([simulation.errors() for simulation in simulations])
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else None


def errors_by_measure(simulations: Sequence[Simulation]) -> list[MeasuredError]:
    """Return the errors of all trials by measure and breakdown; empty for jobs without panels."""
    return measured_errors(
        simulations[0].job,
        (
            (
                record.estimate.numbers,
                record.estimate.intervals[0]
                - each.ground_truth[record.epoch][record.estimate.numbers - 1],
            )
            for each in simulations
            for record in each.records
            if record.estimate is not None
        ),
    )


def column_errors(simulations: Sequence[Simulation]) -> dict[str, float]:
    squares: dict[str, list[NDArray[np.float64]]] = {}
    for simulation in simulations:
        for record, found in simulation.columns():
            for name, intervals in found.items():
                errors = intervals[0] - simulation.ground_truth[record.epoch]
                squares.setdefault(name, []).append(np.square(errors))
    return {name: float(np.sqrt(np.mean(found))) for name, found in squares.items()}


def coverage(simulations: Sequence[Simulation]) -> float | None:
    covered = np.concatenate([simulation.covered() for simulation in simulations])
    return float(covered.mean()) if len(covered) else None


def simulate(
    job: DeployedJob,
    change_log: ValueLog,
    seed: int | None = None,
    on_epoch: Callable[[EstimateRecord], None] = lambda record: None,
    *,
    smooth: bool = False,
    counts_query: CountsQuery | None = None,
) -> Simulation:
    """Run a job over a change log with one producer for all users.

    All users of the log are enrolled and present at every epoch. None as `seed` uses the operating
    system's randomness. `smooth` smooths at the end, if the protocol supports it.
    """
    generators = seeded_generators(seed)
    cluster = SimulatedCluster(job, generators)
    job = cluster.job
    producer = Producer(
        job,
        None,
        name="simulation",
        transport=MemoryDriver(cluster.log),
        generators=generators,
    )
    producer.enroll(change_log.users, groups_of(change_log))
    comparison = (
        ItemComparison(job, change_log, cluster.log, cluster.keys, generators, counts_query)
        if compares_items(job, change_log)
        else None
    )
    records: list[EstimateRecord] = []
    exhausted = 0
    for epoch, values in enumerate(change_log.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        if epoch % job.epochs.count == 0 or epoch == change_log.last_epoch:
            exhausted = max(exhausted, producer.exhausted)
        if comparison is not None:
            comparison.count_messages(epoch)
        cluster.settle()
        for record in cluster.new_estimates():
            on_epoch(record)
            records.append(record)
            if comparison is not None:
                comparison.compare(record)
    producer.shut()
    if comparison is not None and job.domain.size > MOST_PUBLISHED:
        ground_truth = np.zeros((change_log.last_epoch + 1, 0), np.int64)
    else:
        ground_truth = np.insert(change_log.ground_truth(job.domain), 0, 0, axis=0)
    smoothed: Mapping[int, SmoothedHorizon] = {}
    if smooth and records:
        steps = smoothed_horizons(job, records[-1].epoch)
        smoothed = MemoryDriver(cluster.log).run(steps)
    accuracies = {} if comparison is None else comparison.accuracies
    return Simulation(job, tuple(records), ground_truth, exhausted, smoothed, accuracies)
