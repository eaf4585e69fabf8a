"""Random directions: a seed of 128 bits encodes a vector of Gaussian variates.

All parties must expand a seed to the same integers, on any machine. Expansion mixes a counter with
the seed; a table of Gaussian quantiles maps 16-bit words of the result to coordinates. Directions
are public, so the words must look random, but need not be cryptographic.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

UNIT = 1 << 12
"""Standard deviation of a coordinate."""

MAX_SEED_BITS = 128

_WORDS = 1 << 16
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def draw_seeds(count: int, seed_bits: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw uniform seeds, uint8, shape (count, bytes), little-endian."""
    width = -(-seed_bits // 8)
    seeds = rng.integers(0, 256, (count, width), dtype=np.uint8)
    seeds[:, -1] &= (1 << (seed_bits - 8 * (width - 1))) - 1
    return seeds


def directions(seeds: NDArray[np.uint8], dimensions: int) -> NDArray[np.int16]:
    """Expand seeds to vectors: `UNIT` times standard Gaussian variates, rounded.

    Each 64-bit word yields four coordinates. It is mix(low ^ mix(high + j step)), where `low` and
    `high` are the halves of the seed, and j is the word's index from 1.

    Seeds are uint8, shape (n, bytes), at most 16 bytes, little-endian. Vectors are int16, shape
    (n, dimensions).

    Reference: Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014 (the
    finalizer of SplitMix64).
    """
    padded = np.zeros((len(seeds), MAX_SEED_BITS // 8), np.uint8)
    padded[:, : seeds.shape[1]] = seeds
    low, high = padded.view("<u8").astype(np.uint64).T
    places = np.arange(1, -(-dimensions // 4) + 1, dtype=np.uint64) * _STEP
    mixed = _mix(high[:, None] + places)
    mixed ^= low[:, None]
    words = _mix(mixed).astype("<u8", copy=False).view("<u2")[:, :dimensions]
    vectors: NDArray[np.int16] = normal_table()[words]
    return vectors


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        words ^= words >> shift
        words *= multiplier
    words ^= words >> _SHIFTS[2]
    return words


@cache
def normal_table() -> NDArray[np.int16]:
    """Tabulate `UNIT` times the Gaussian quantile of (w + 1/2) / 2^16, rounded, for 16-bit words w.

    The table is int16, shape (65536,), read-only, and the same on every machine. Wichura's
    algorithm AS 241 (1988) uses sums, products, quotients and square roots, for which IEEE 754
    defines the rounding, and logarithms by `decimal`, which are correctly rounded too.
    """
    upper = np.array([_quantile((word + 0.5) / _WORDS) for word in range(_WORDS // 2, _WORDS)])
    rounded = np.rint(UNIT * upper).astype(np.int16)
    table = np.concatenate([-rounded[::-1], rounded])
    table.flags.writeable = False
    return table


_CENTER = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)


def _quantile(share: float) -> float:
    """Return the Gaussian quantile of a probability from 1/2 to 1 - e^-25, by AS 241."""
    centered = share - 0.5
    if centered <= 0.425:
        return centered * _ratio(_CENTER, 0.180625 - centered * centered)
    root = math.sqrt(-float(Decimal(1 - share).ln()))
    return _ratio(_TAIL, root - 1.6)


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], point: float) -> float:
    above, below = 0.0, 0.0
    for up, down in zip(*polynomials, strict=True):
        above, below = above * point + up, below * point + down
    return above / below
