"""Calibrate the mechanism of a count-mean sketch from a job's parameters.

The row that a device draws is independent of all values and visible to all parties. Given the rows
of all devices, a user's bits are hidden as in `fragments`, but only among the contributors of the
same row. A part of delta covers rows with fewer contributors than assumed.
"""

from __future__ import annotations

from typing import Final

from scipy import stats

from dpstream.randomizers.item_domains import Points, domain_size
from dpstream.randomizers.search import least_integer
from experiments.protocols.count_mean_sketch import (
    CountMeanSketchLaw,
    CountMeanSketchParameters,
)
from experiments.protocols.fragments import FragmentsParameters
from experiments.protocols.fragments.calibration import calibrate as fragments
from experiments.protocols.fragments.calibration import epsilon_with as fragments_epsilon_with

FOR_ROWS: Final = 0.01
"""Fraction of delta reserved for rows that too few users draw."""


def calibrate(
    parameters: CountMeanSketchParameters, last_epoch: int, minimum: int
) -> CountMeanSketchLaw:
    """Return the mechanism with the least sufficient noise, for at least `minimum` contributors.

    Raises `ValueError` if no noise is enough.

    >>> requested = CountMeanSketchParameters(1.0, 1e-6, ("a", "b"), rows=10, buckets=1000)
    >>> law = calibrate(requested, last_epoch=1, minimum=100_000)
    >>> law.bits.minimum, round(law.bits.local_epsilon, 2)
    (9473, 9.71)
    """
    delta = parameters.delta
    in_row = fewest_in_row(minimum, parameters.rows, delta * FOR_ROWS / last_epoch)
    requested = FragmentsParameters(
        parameters.epsilon,
        delta * (1 - FOR_ROWS),
        Points((parameters.buckets,)),
        neighbors=parameters.neighbors,
    )
    return CountMeanSketchLaw(
        items=domain_size(parameters.domain),
        rows=parameters.rows,
        minimum=minimum,
        delta=delta,
        bits=fragments(requested, last_epoch, in_row),
    )


def epsilon_with(law: CountMeanSketchLaw, honest: int) -> float:
    """Return epsilon if a message is hidden among those of `honest` (at least 1) honest users."""
    in_row = fewest_in_row(honest, law.rows, law.delta * FOR_ROWS / law.last_epoch)
    return fragments_epsilon_with(law.bits, in_row)


def fewest_in_row(contributors: int, rows: int, failing: float) -> int:
    """Return a lower bound on how many users share a row; it fails with probability `failing`.

    >>> fewest_in_row(1000, 1, 1e-9), fewest_in_row(459_254, 1024, 1e-9)
    (1000, 329)
    """
    if rows == 1:
        return contributors
    # Slightly less than allowed: computed in floating point.
    return 1 + least_integer(
        lambda others: bool(
            stats.binom.cdf(others, contributors - 1, 1 / rows) >= failing * (1 - 1e-6)
        ),
        -1,
        contributors - 1,
    )
