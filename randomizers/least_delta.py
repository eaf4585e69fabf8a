"""A lower bound on delta that a device computes for itself, from the noise that its job states.

Which noise suffices for an epsilon and a delta takes accounting, which devices do not import. What
a single count gives away is quickly computed: an attacker who knows all other users counts the
messages of some cells, and compares a user who sends `shift` more of them with one who does not.
All reports together give away at least that. A stated delta below it is wrong, whoever signed it.

`randomizers/javascript/src/least_delta.js` computes the same.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_noise_law import CellNoiseLaw

SLACK: Final = 1 + 1e-3
"""Factor by which a lower bound may exceed the stated delta: tables, rounding and logarithms."""

_MOST = 1 << 33
"""Messages in the cells of a count, at most; a single cell with more noise is refused."""
_POINTS = 2000
_LEAST_DISTANCE = 1e-4


def of_cells(noise: CellNoiseLaw, cells: int, shift: int, epsilon: float) -> float:
    """Delta of a user who sends `shift` more messages to some cells, all with this noise.

    >>> from dpstream.randomizers.cell_noise_law import CellNoiseLaw
    >>> of_cells(CellNoiseLaw("poisson", mean=1e-9, minimum=100), 1, 1, epsilon=1.0) > 0.99
    True

    Args:
        noise: of one cell.
        cells: how many the messages are counted of.
        shift: messages that the user sends to them, or does not.
        epsilon: stated.
    """
    # Fewer of these cells hold at least their share of the shift.
    fewer = math.floor(min(cells, max(1, _MOST / noise.mean)))
    cells, shift = fewer, max(1, shift * fewer // cells)
    if noise.dummies == "bernoulli":
        return of_coins(noise.minimum * cells, noise.mean / noise.minimum, shift, epsilon)
    if noise.shape is None:
        return _hockey_stick(_counts(0.0, noise.mean * cells), shift, epsilon)
    stop = noise.mean / (noise.shape + noise.mean)
    return _hockey_stick(_counts(stop, (noise.shape * cells - 1) * stop), shift, epsilon)


def of_coins(
    coins: int, probability: float, shift: int, epsilon: float, own: float = 1, other: float = 0
) -> float:
    """The same among coins of other users, each 1 with this probability.

    Args:
        coins: how many there are.
        probability: of each, below 1.
        shift: as above.
        epsilon: stated.
        own: probability that the user adds the shift.
        other: the same, of the neighbor.
    """
    odds = probability / max(1 - probability, 2.0**-53)
    return _hockey_stick(_counts(-odds, (coins + 1) * odds), shift, epsilon, own, other)


def of_normal(distance: float, deviation: float, epsilon: float) -> float:
    """Delta of sums with normal noise, which differ by a Euclidean distance in all."""
    if distance / deviation < _LEAST_DISTANCE:
        return 0.0
    shift = math.ceil(distance / deviation * _POINTS)
    width = distance / deviation / shift
    points = np.arange(-math.ceil(14 / width), math.ceil(14 / width) + 1) * width
    return _hockey_stick(np.exp(-points * points / 2), shift, epsilon)


def _counts(a: float, b: float) -> NDArray[np.float64]:
    """Weights of counts k around the likeliest, each a + b / k times the one before (Panjer)."""
    variance = max(a + b, 0) / (1 - a) ** 2
    if variance > 2 * _MOST:
        return np.ones(1)
    mode = max(0, math.floor(b / (1 - a)))
    # The largest count of nearly certain coins.
    mode -= mode > 0 and a + b / mode <= 0
    reach = math.ceil(16 * math.sqrt(variance) + 80 / (1 - a)) + 1
    above = np.maximum(a + b / np.arange(mode + 1, mode + 1 + reach), 0)
    below = a + b / np.arange(mode, max(mode - reach, 0), -1)
    return np.concatenate([np.cumprod(1 / below)[::-1], [1], np.cumprod(above)])


def _hockey_stick(
    weights: NDArray[np.float64], shift: int, epsilon: float, own: float = 1, other: float = 0
) -> float:
    """Delta between a law that is shifted with probability `own`, and with probability `other`."""
    missing = np.zeros(min(shift, len(weights)))
    law = np.concatenate([weights, missing]) / weights.sum()
    shifted = np.concatenate([missing, weights]) / weights.sum()
    one, two = (share * shifted + (1 - share) * law for share in (own, other))
    factor = math.exp(min(epsilon, 700))
    return float(max(np.maximum(x - factor * y, 0).sum() for x, y in ((one, two), (two, one))))
