"""From the parameters of a job over items to the constants that its devices run on.

What a device tracks flips for half of the rows when its item changes. With a sign for every change
nobody ever runs out of them; with fewer signs all reports are more accurate, and some users freeze.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from randomizers.future_rand import FutureRandParameters
from randomizers.future_rand.calibration import calibrate as future_rand_calibrate
from randomizers.hadamard_stream import (
    HadamardStreamLaw,
    HadamardStreamParameters,
    check_domain_size,
    rows_for,
)

REFERENCE_ERROR = 0.1
"""The standard deviation of an estimate as a share of the count, for which `best_signs` weighs
noise against bias. At larger errors fewer signs would do, but estimates are of little use then."""

_DIGITS = 6


def calibrate(parameters: HadamardStreamParameters, last_epoch: int) -> HadamardStreamLaw:
    """The law of a job.

    Args:
        parameters: of the job.
        last_epoch: number of epochs; the horizon is the next power of two.

    Raises:
        ValueError: there is no epoch, or there are too many.

    >>> parameters = HadamardStreamParameters(1.0, 8, tuple("abcdefghijkl"))
    >>> law = calibrate(parameters, last_epoch=64)
    >>> law.signs, law.frozen_share
    (8, 0.003175)
    """
    items = len(parameters.domain)
    check_domain_size(items, last_epoch)
    # No value changes more often than there are epochs.
    changes = max(0, min(parameters.changes, last_epoch - 1))
    # Who has one item flips once at most, whatever the item and the row.
    flips = flip_law(items, values=changes + 1) if changes else np.full(2, 0.5)
    signs = parameters.signs or best_signs(flips, parameters.epsilon)
    return HadamardStreamLaw(
        items=items,
        changes=changes,
        frozen_share=round(float(flips[signs + 1 :].sum()), _DIGITS),
        future_rand=future_rand_calibrate(
            FutureRandParameters(parameters.epsilon, signs), last_epoch
        ),
    )


def flip_law(items: int, values: int) -> NDArray[np.float64]:
    """How often b flips, for a user with so many items one after the other.

    The first item is any of the domain and each later one any of the others, equally likely, as is
    the row (`mean_flip_law`). For a large domain it is close to Binomial(values, 1/2). In a domain
    of two items, where users go back and forth, a quarter of the rows each has none, one, all but
    one and all of the flips.

    Args:
        items: size of the domain.
        values: items that the user has in turn, the first one included; at least 1.

    Returns:
        float64, shape (values + 1,): the probability of each number of flips.

    >>> flip_law(2, 5).tolist(), flip_law(3, 2).tolist()
    ([0.25, 0.25, 0.0, 0.0, 0.25, 0.25], [0.25, 0.5, 0.25])
    """
    rows = rows_for(items)
    numbers = np.arange(rows, dtype=np.uint16)
    positive = np.zeros(rows, np.int64)
    for item in range(1, items + 1):
        positive += 1 - (np.bitwise_count(numbers & np.uint16(item)) & 1)
    distinct, times = np.unique(positive, return_counts=True)
    return mean_flip_law(distinct, times / rows, items, values)


def mean_flip_law(
    positive: NDArray[np.int64], shares: NDArray[np.float64], items: int, values: int
) -> NDArray[np.float64]:
    """How often the tracked Boolean flips, the mean over kinds of rows.

    Given a row it is a Markov chain of two states, whose transitions depend on the row by no more
    than the number of items that have +1 there.

    Args:
        positive: shape (kinds,), of how many items it is true.
        shares: shape (kinds,), the probability of each kind of row.
        items: that a value may be; each later one is any of the others, equally likely.
        values: that the user has in turn, the first one included; at least 1.

    Returns:
        float64, shape (values + 1,): the probability of each number of flips.
    """
    up, down = positive[:, None] / (items - 1), (items - positive[:, None]) / (items - 1)
    # Probability of the present Boolean and the flips so far, for each kind of row.
    zero, one = np.zeros((2, len(positive), values + 1))
    zero[:, 0], one[:, 1] = 1 - positive / items, positive / items
    for _ in range(values - 1):
        fallen, risen = down * one, up * zero
        zero, one = zero - risen, one - fallen
        zero[:, 1:] += fallen[:, :-1]
        one[:, 1:] += risen[:, :-1]
    law: NDArray[np.float64] = shares @ (zero + one)
    return law


def best_signs(flips: NDArray[np.float64], epsilon: float) -> int:
    """The budget of signs with the least error at `REFERENCE_ERROR`.

    Weighed is an item all of whose users have changed as often as the job follows. Noise is in
    inverse proportion to c_gap, and is `REFERENCE_ERROR` with a sign for every change. A user who
    has left out an odd number of flips has the wrong b; each such share of the users takes twice
    itself from the count of their item (b counts twice), which is the bias.

    Args:
        flips: from `flip_law`.
        epsilon: of a user's stream.
    """
    signs = np.arange(1, len(flips))
    gaps = np.array([_c_gap(int(each), epsilon) for each in signs])
    bias = np.array([2 * flips[each + 1 :: 2].sum() for each in signs])
    error = np.square(REFERENCE_ERROR * gaps[-1] / gaps) + np.square(bias)
    return int(signs[error.argmin()])


def _c_gap(signs: int, epsilon: float) -> float:
    """That of `calibration.optimal`, in floating point."""
    distances = np.arange(signs)
    gain = np.expm1(epsilon)
    advantage = gain * stats.binom.pmf(distances, signs - 1, 0.5) / 2
    return float((advantage / (1 + gain * stats.binom.cdf(distances, signs, 0.5))).max())
