"""Registry entries and forecast of noisy measurements, which are for comparison only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol
from dpstream.pipeline.values.sets import SetDomain
from experiments.protocols.measurements import (
    BucketLaw,
    BucketParameters,
    JlHhLaw,
    JlHhParameters,
    LaplaceHistogramLaw,
    LaplaceHistogramParameters,
    Measurements,
    MeasurementsLaw,
    MeasurementsParameters,
    SparseRecoveryLaw,
    SparseRecoveryParameters,
)
from experiments.protocols.measurements.aggregator import MeasurementsAggregator, sum_variance
from experiments.protocols.measurements.calibration import calibrate


class MeasurementsForecast(PerEpochForecast):
    """Forecast of the errors from noise, and from other items, whose columns are not orthogonal."""

    def __init__(
        self,
        aggregator: MeasurementsAggregator,
        epsilon: float,
        last_epoch: int,
        notes: tuple[str, ...] = (),
        held: NDArray[np.float64] | None = None,
    ) -> None:
        self._law: MeasurementsLaw = aggregator.law
        super().__init__(last_epoch, self._law.items, 1, held)
        self._aggregator, self._epsilon, self._of_protocol = aggregator, epsilon, notes
        matrix, noise = self._law.matrix, self._law.noise
        many = f"{matrix.measurements:,} measurements"
        self.cells = f"one sampled from {many}" if noise is None else f"{many} per user"
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "measurements": matrix.measurements,
                "of_an_item": matrix.filled,
                "noise": math.sqrt(sum_variance(self._law, 1)),
                "bytes_per_user": self._law.message_format.report_bytes,
            },
        )
        self.notes = (comparison(epsilon), *_of_removal(self._law), *notes)

    def like(self, held: NDArray[np.float64]) -> MeasurementsForecast:
        return MeasurementsForecast(
            self._aggregator, self._epsilon, self._last_epoch, self._of_protocol, held
        )

    def _noise_deviation(self, users: int) -> float:
        return math.sqrt(sum_variance(self._law, users) / self._law.matrix.filled)

    def _deviation(self, users: int) -> float:
        # This is the error of an item that few users have.
        others = np.delete(users * self._held, self._held.argmin())
        shared = self._aggregator.others_variance(
            float(others.sum()), float(np.square(others).sum())
        )
        return math.hypot(self._noise_deviation(users), math.sqrt(shared))


def local_floor(epsilon: float) -> float:
    """Return the standard error that binary randomized response has, divided by sqrt(users).

    The variance per user is e^epsilon / (e^epsilon - 1)^2. Errors of all local protocols have at
    least this order.

    Reference: *Distributed Private Heavy Hitters*, Theorem 3.3.
    """
    return math.exp(epsilon / 2) / math.expm1(epsilon)


def comparison(epsilon: float) -> str:
    return (
        "for comparison only: without a trusted party use projective_geometry, with a trusted "
        "shuffler count_min or fragments; without trust even the answer to one yes/no question "
        f"has an error of {local_floor(epsilon):.3g} times the square root of the number of users"
    )


def _of_removal(law: MeasurementsLaw) -> tuple[str, ...]:
    if law.neighbors == "replacement":
        return ()
    return (
        "the published noise hides whether a user has an item, not which item; 'calibration: "
        "replacement' hides that, too, with twice the noise",
    )


def _of_sampled_rows(law: MeasurementsLaw, requested: MeasurementsParameters) -> tuple[str, ...]:
    if law.odds is None:
        return ()
    return (
        "each user reports one row by randomized response: hadamard_values has the same rows, "
        "tracks items over time, and its error at one epoch is up to 1.3 times as large",
    )


def _labeled(
    aggregator: MeasurementsAggregator, requested: MeasurementsParameters
) -> MeasurementsAggregator:
    aggregator.label = SetDomain(requested.domain, 1).label
    return aggregator


def _measurements(
    name: str,
    parameters: type[MeasurementsParameters],
    law: type[MeasurementsLaw],
    *examples: Example,
    notes: Callable[[Any, Any], tuple[str, ...]] = lambda law, requested: (),
) -> Protocol:
    """Return a registry entry for noisy measurements; `notes` returns warnings for `plan`."""
    return Protocol(
        name=name,
        parameters=parameters,
        law=lambda requested: law,
        calibrate=calibrate,
        randomizer=Measurements,
        aggregation=Aggregation(
            lambda law, requested: _labeled(MeasurementsAggregator(law), requested),
            lambda law, requested, data: _labeled(
                MeasurementsAggregator.from_bytes(law, data), requested
            ),
        ),
        planning=Planning(
            lambda law, requested, last_epoch: MeasurementsForecast(
                MeasurementsAggregator(law), requested.epsilon, last_epoch, notes(law, requested)
            )
        ),
        values=lambda requested: SetDomain(requested.domain, 1),
        per_epoch=True,
        examples=examples,
    )


LAPLACE_HISTOGRAM = _measurements(
    "laplace_histogram",
    LaplaceHistogramParameters,
    LaplaceHistogramLaw,
    Example(LaplaceHistogramParameters(4.0, ("a", "b")), 1),
    Example(LaplaceHistogramParameters(2.0, ("a",), "published"), 2),
)

JL_HH = _measurements(
    "jl_hh",
    JlHhParameters,
    JlHhLaw,
    Example(JlHhParameters(8.0, ("a",), 0.1, calibration="published"), 1),
    Example(JlHhParameters(8.0, ("a", "b"), 0.1, 2), 1),
    Example(JlHhParameters(1.0, ("a", "b", "c"), calibration="sampled"), 1),
    notes=_of_sampled_rows,
)

BUCKET = _measurements(
    "bucket",
    BucketParameters,
    BucketLaw,
    Example(BucketParameters(8.0, ("a", "b"), 0.1, hashes=1, trials=2), 1),
    Example(BucketParameters(2.0, ("a", "b"), hashes=2, trials=2, calibration="sampled"), 1),
)

SPARSE_RECOVERY = _measurements(
    "sparse_recovery",
    SparseRecoveryParameters,
    SparseRecoveryLaw,
    Example(SparseRecoveryParameters(8.0, ("a",), 0.1, sparsity=1, calibration="published"), 1),
    Example(SparseRecoveryParameters(2.0, ("a",), sparsity=1, calibration="sampled"), 1),
)
