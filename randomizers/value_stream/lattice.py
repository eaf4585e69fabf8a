"""Base distribution of symbols: a discrete Gaussian on multiples of 1/8, with integer weights.

Every symbol is one byte. The symbols 8 to 152 encode the numbers -9 to 9, and devices can report
each of them for any stream. Their probabilities are multiples of 2^-62, and their mean and variance
are those of a standard normal distribution up to 1e-15.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

ZERO = 80
"""Symbol that encodes 0."""
FIRST, LAST = 8, 152
STEP = 1 / 8
"""Difference between the numbers that consecutive symbols encode."""
WEIGHT_BITS = 62
TAIL = 4.0
"""Number beyond which a symbol is in the tail, on the side of the tilt."""
NOWHERE = 0
"""Result of `tail_symbols_at` for random integers that select no tail symbol."""
_TAIL_STEPS = round(TAIL / STEP)
_GUIDE_BITS = 16
_WORD_BITS = 64


@cache
def weights() -> tuple[int, ...]:
    """Return the weights of the symbols from `FIRST` to `LAST`, with a sum of 2^62.

    Each weight is 2^62 times a normalized Gaussian density, rounded to the nearest integer; the
    weight of `ZERO` includes the remainder.

    >>> sum(weights()) == 1 << WEIGHT_BITS, weights()[0] == weights()[-1]
    (True, True)
    """
    with localcontext() as context:
        context.prec = 40
        densities = {
            symbol: (-((Decimal(symbol - ZERO) / 8) ** 2) / 2).exp()
            for symbol in range(FIRST, LAST + 1)
        }
        unit = Decimal(1 << WEIGHT_BITS) / sum(densities.values())
        rounded = {
            symbol: int((unit * density).to_integral_value(ROUND_HALF_EVEN))
            for symbol, density in densities.items()
        }
    rounded[ZERO] += (1 << WEIGHT_BITS) - sum(rounded.values())
    return tuple(rounded.values())


def tail_box() -> int:
    """Return the least power of two above the total weight of one tail."""
    return 1 << sum(weights()[ZERO + _TAIL_STEPS + 1 - FIRST :]).bit_length()


def symbols_at(words: NDArray[np.uint64]) -> NDArray[np.int16]:
    """Return the symbols, minus `ZERO`, selected by the leading 62 bits of 64-bit integers."""
    cumulated, guide = _tables()
    symbols: NDArray[np.int16] = guide.take(words >> np.uint64(_WORD_BITS - _GUIDE_BITS))
    undecided = np.flatnonzero(symbols == _UNDECIDED)
    places = words[undecided] >> np.uint64(_WORD_BITS - WEIGHT_BITS)
    symbols[undecided] = np.searchsorted(cumulated, places, side="right") + (FIRST - ZERO)
    return symbols


def tail_symbols_at(words: NDArray[np.uint64]) -> NDArray[np.int16]:
    """Return the tail symbols, minus `ZERO`, selected by random 64-bit integers: 33 to 72.

    The leading bits select a position in `tail_box`. Each tail symbol has as many positions as its
    weight; all other positions return `NOWHERE`.
    """
    in_tail = np.cumsum(np.array(weights()[-(LAST - ZERO - _TAIL_STEPS) :], np.uint64))
    places = words >> np.uint64(_WORD_BITS + 1 - tail_box().bit_length())
    symbols = np.searchsorted(in_tail, places, side="right") + (_TAIL_STEPS + 1)
    return np.where(symbols > LAST - ZERO, NOWHERE, symbols).astype(np.int16)


_UNDECIDED = np.int16(1 << 14)


@cache
def _tables() -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Return cumulative weights, and the symbol (or `_UNDECIDED`) for any 16 leading bits."""
    cumulated = np.cumsum(np.array(weights(), np.uint64), dtype=np.uint64)
    shift = np.uint64(WEIGHT_BITS - _GUIDE_BITS)
    cells = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << shift
    first = np.searchsorted(cumulated, cells, side="right")
    last = np.searchsorted(cumulated, cells + ((np.uint64(1) << shift) - np.uint64(1)), "right")
    guide = np.where(first == last, first + (FIRST - ZERO), _UNDECIDED).astype(np.int16)
    return cumulated, guide
