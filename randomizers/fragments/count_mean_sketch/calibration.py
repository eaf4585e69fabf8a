"""From the parameters of a count-mean sketch to the constants that its devices run on.

Which row a device draws depends on no value and is seen by everybody. Given the rows of all, the
bits of a user hide among those of the others of the same row: they are fragments of so many
contributors. That a row has fewer others than that is paid for by a part of delta.
"""

from __future__ import annotations

from typing import Final

from scipy import stats

from dpstream.randomizers.fragments import FragmentsParameters
from dpstream.randomizers.fragments.calibration import calibrate as fragments
from dpstream.randomizers.fragments.calibration import epsilon_with as fragments_epsilon_with
from dpstream.randomizers.fragments.count_mean_sketch import (
    CountMeanSketchLaw,
    CountMeanSketchParameters,
)
from dpstream.randomizers.item_domains import Points, domain_size
from dpstream.randomizers.search import least_integer

FOR_ROWS: Final = 0.01
"""The part of delta for rows that few draw."""


def calibrate(
    parameters: CountMeanSketchParameters, last_epoch: int, minimum: int
) -> CountMeanSketchLaw:
    """The law with the least noise that is private enough.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: the fewest contributors of a window.

    Raises:
        ValueError: no noise is enough.

    >>> asked = CountMeanSketchParameters(1.0, 1e-6, ("a", "b"), rows=10, buckets=1000)
    >>> law = calibrate(asked, last_epoch=1, minimum=100_000)
    >>> law.bits.minimum, round(law.bits.local_epsilon, 2)
    (9473, 9.71)
    """
    delta = parameters.delta
    in_row = fewest_in_row(minimum, parameters.rows, delta * FOR_ROWS / last_epoch)
    asked = FragmentsParameters(
        parameters.epsilon,
        delta * (1 - FOR_ROWS),
        Points((parameters.buckets,)),
        neighbours=parameters.neighbours,
    )
    return CountMeanSketchLaw(
        items=domain_size(parameters.domain),
        rows=parameters.rows,
        minimum=minimum,
        delta=delta,
        bits=fragments(asked, last_epoch, in_row),
    )


def epsilon_with(law: CountMeanSketchLaw, honest: int) -> float:
    """The epsilon with so many honest contributors, at least 1."""
    in_row = fewest_in_row(honest, law.rows, law.delta * FOR_ROWS / law.last_epoch)
    return fragments_epsilon_with(law.bits, in_row)


def fewest_in_row(contributors: int, rows: int, failing: float) -> int:
    """A user and so many others as draw the user's row, but with a small probability, at least.

    >>> fewest_in_row(1000, 1, 1e-9), fewest_in_row(459_254, 1024, 1e-9)
    (1000, 329)
    """
    if rows == 1:
        return contributors
    # Computed in floating point: a little less than what is allowed.
    return 1 + least_integer(
        lambda others: bool(
            stats.binom.cdf(others, contributors - 1, 1 / rows) >= failing * (1 - 1e-6)
        ),
        -1,
        contributors - 1,
    )
