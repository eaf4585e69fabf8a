"""From the parameters of a job over numeric values to the constants that its devices run on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from randomizers.accounting.level_weights import optimal_level_weights
from randomizers.future_rand import FutureRandLaw, FutureRandParameters
from randomizers.future_rand.calibration import calibrate as future_rand_calibrate
from randomizers.hadamard_stream import HadamardStreamLaw
from randomizers.hadamard_stream.calibration import best_signs, mean_flip_law
from randomizers.range_stream import RangeStreamLaw, RangeStreamParameters
from randomizers.tree_variances import combined_variances, order_shares

_DIGITS = 6


def calibrate(parameters: RangeStreamParameters, last_epoch: int) -> RangeStreamLaw:
    """The law of a job.

    Every level has the signs that suit how often its nodes change, and the levels are drawn with
    the shares that make the estimates of all ranges best on average.

    Args:
        parameters: of the job.
        last_epoch: number of epochs; the horizon is the next power of two.

    Raises:
        ValueError: there is no epoch, or there are too many.

    >>> law = calibrate(RangeStreamParameters(1.0, 4, low=0, high=80, buckets=16), last_epoch=64)
    >>> [level.signs for level in law.levels]
    [4, 4, 5, 5]
    >>> [round(probability, 2) for probability in law.level_probabilities]
    [0.0, 0.2, 0.15, 0.65]
    """
    # No value changes more often than there are epochs.
    changes = max(0, min(parameters.changes, last_epoch - 1))
    flips = [flip_law(level, parameters.levels, changes + 1) for level in _levels(parameters)]
    signs = [parameters.signs or best_signs(law, parameters.epsilon) for law in flips]
    booleans = {
        budget: future_rand_calibrate(FutureRandParameters(parameters.epsilon, budget), last_epoch)
        for budget in set(signs)
    }
    variances = {budget: _mean_variance(law, last_epoch) for budget, law in booleans.items()}
    return RangeStreamLaw(
        levels=tuple(
            HadamardStreamLaw(
                items=1 << level,
                changes=changes,
                frozen_share=round(float(law[budget + 1 :].sum()), _DIGITS),
                future_rand=booleans[budget],
            )
            for level, law, budget in zip(_levels(parameters), flips, signs, strict=True)
        ),
        level_weights=optimal_level_weights(np.array([variances[budget] for budget in signs])),
    )


def _levels(parameters: RangeStreamParameters) -> range:
    return range(1, parameters.levels + 1)


def flip_law(level: int, levels: int, values: int) -> NDArray[np.float64]:
    """How often the tracked Boolean of a level flips, for a user with so many values in turn.

    The first value lies in any bucket and each later one in any other, equally likely: as
    `hadamard_stream.calibration.flip_law`, but a value that has changed may still lie in
    the same node. A row with 2^l columns besides column 0 has one of four numbers of +1 in them.

    Args:
        level: l, from 1.
        levels: L, at least l.
        values: that the user has in turn, the first one included; at least 1.

    Returns:
        float64, shape (values + 1,): the probability of each number of flips.

    >>> from randomizers.hadamard_stream.calibration import flip_law as exact_flip_law
    >>> bool(np.allclose(flip_law(3, 3, 5), exact_flip_law(8, 5)))
    True
    """
    nodes, width = 1 << level, 1 << (levels - level)
    buckets = nodes * width
    positive = np.array([nodes, nodes - 1, nodes // 2, nodes // 2 - 1]) * width
    shares = np.array([1, 1, nodes - 1, nodes - 1]) / (2 * nodes)
    return mean_flip_law(positive, shares, buckets, values)


def _mean_variance(law: FutureRandLaw, last_epoch: int) -> float:
    """Of an estimate, over all epochs, in proportion to that of one user."""
    shares = order_shares(last_epoch)
    own = [
        1 / (c_gap**2 * probability) if probability else np.inf
        for c_gap, probability in zip(law.c_gaps, law.order_probabilities, strict=True)
    ]
    return float(np.dot(shares, combined_variances(own)[: len(shares)]))
