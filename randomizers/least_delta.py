"""Lower bound on delta that a device computes itself, from the noise that its job declares.

Sizing the noise for an epsilon and a delta requires the accounting modules, which devices do not
import. The leakage of a single count is fast to compute. An attacker who knows all other users'
values counts the messages in some cells, to learn whether a user sent `shift` more messages or not.
All reports together leak at least as much. A declared delta below the bound is wrong, regardless of
who signed it.

`randomizers/javascript/src/least_delta.js` computes the same.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_noise_law import CellNoiseLaw

SLACK: Final = 1 + 1e-3
"""Maximum ratio of a lower bound to the declared delta: tables and rounding differ slightly."""

_MOST = 1 << 33
"""Maximum mean number of dummies in the counted cells; a single cell with more is rejected."""
_POINTS = 2000
_LEAST_DISTANCE = 1e-4


def of_cells(noise: CellNoiseLaw, cells: int, shift: int, epsilon: float) -> float:
    """Return the delta between users with and without `shift` more messages in `cells` cells.

    `noise` is the noise of one cell, and `epsilon` is the declared epsilon.

    >>> from dpstream.randomizers.cell_noise_law import CellNoiseLaw
    >>> of_cells(CellNoiseLaw("poisson", mean=1e-9, minimum=100), 1, 1, epsilon=1.0) > 0.99
    True
    """
    # Some `fewer` of the cells contain at least a proportional part of the shift.
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
    """Return the delta for a user among `coins` other users' coins, each 1 with `probability`.

    The user adds `shift` with probability `own`, or `other` under the neighboring input.
    """
    odds = probability / max(1 - probability, 2.0**-53)
    return _hockey_stick(_counts(-odds, (coins + 1) * odds), shift, epsilon, own, other)


def of_normal(distance: float, deviation: float, epsilon: float) -> float:
    """Return the delta for sums with Gaussian noise that differ by a Euclidean `distance`."""
    if distance / deviation < _LEAST_DISTANCE:
        return 0.0
    shift = math.ceil(distance / deviation * _POINTS)
    width = distance / deviation / shift
    points = np.arange(-math.ceil(14 / width), math.ceil(14 / width) + 1) * width
    return _hockey_stick(np.exp(-points * points / 2), shift, epsilon)


def _counts(a: float, b: float) -> NDArray[np.float64]:
    """Return weights of counts k around the mode, each a + b / k times the one before (Panjer)."""
    variance = max(a + b, 0) / (1 - a) ** 2
    if variance > 2 * _MOST:
        return np.ones(1)
    mode = max(0, math.floor(b / (1 - a)))
    # With nearly certain coins, this may be one more than the largest count.
    mode -= mode > 0 and a + b / mode <= 0
    reach = math.ceil(16 * math.sqrt(variance) + 80 / (1 - a)) + 1
    above = np.maximum(a + b / np.arange(mode + 1, mode + 1 + reach), 0)
    below = a + b / np.arange(mode, max(mode - reach, 0), -1)
    return np.concatenate([np.cumprod(1 / below)[::-1], [1], np.cumprod(above)])


def _hockey_stick(
    weights: NDArray[np.float64], shift: int, epsilon: float, own: float = 1, other: float = 0
) -> float:
    """Return the delta between a distribution shifted with probability `own` and with `other`."""
    missing = np.zeros(min(shift, len(weights)))
    law = np.concatenate([weights, missing]) / weights.sum()
    shifted = np.concatenate([missing, weights]) / weights.sum()
    one, two = (share * shifted + (1 - share) * law for share in (own, other))
    factor = math.exp(min(epsilon, 700))
    return float(max(np.maximum(x - factor * y, 0).sum() for x, y in ((one, two), (two, one))))
