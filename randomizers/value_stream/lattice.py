"""Base distribution: normal on multiples of 1/8, from integer weights.

Devices report symbols from its support, whatever their streams: one byte each. The symbols 8 to 152
encode -9 to 9. Their probabilities are integers over 2^62, and their mean and variance are those of
a standard normal distribution, to 1e-15.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

ZERO = 80
"""Symbol that encodes 0."""

FIRST, LAST = 8, 152
"""Least and largest symbol that devices send."""

STEP = 1 / 8
"""Difference between neighboring values."""

WEIGHT_BITS = 62
TAIL = 4.0
"""Value beyond which a symbol is in the tail, on the side to which it is tilted."""

NOWHERE = 0
"""Result in place of a tail symbol where a word selects none."""

_TAIL_STEPS = round(TAIL / STEP)
_GUIDE_BITS = 16
_WORD_BITS = 64


@cache
def weights() -> tuple[int, ...]:
    """Return the weights of the symbols from `FIRST` to `LAST`, with a sum of 2^62.

    Each is 2^62 times its normal probability, rounded to nearest; the remainder is in the symbol 0.

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
    """Return the least power of two that holds the weights beyond `TAIL` on one side."""
    return 1 << sum(weights()[ZERO + _TAIL_STEPS + 1 - FIRST :]).bit_length()


def symbols_at(words: NDArray[np.uint64]) -> NDArray[np.int16]:
    """Return the symbols, less `ZERO`, of random 64-bit words by their leading 62 bits."""
    cumulated, guide = _tables()
    symbols: NDArray[np.int16] = guide.take(words >> np.uint64(_WORD_BITS - _GUIDE_BITS))
    undecided = np.flatnonzero(symbols == _UNDECIDED)
    places = words[undecided] >> np.uint64(_WORD_BITS - WEIGHT_BITS)
    symbols[undecided] = np.searchsorted(cumulated, places, side="right") + (FIRST - ZERO)
    return symbols


def tail_symbols_at(words: NDArray[np.uint64]) -> NDArray[np.int16]:
    """Return the symbols beyond `TAIL` of random 64-bit words, relative to `ZERO`: 33 to 72.

    Of the positions in `tail_box`, each symbol has as many as its weight; others give `NOWHERE`.
    """
    in_tail = np.cumsum(np.array(weights()[-(LAST - ZERO - _TAIL_STEPS) :], np.uint64))
    places = words >> np.uint64(_WORD_BITS + 1 - tail_box().bit_length())
    symbols = np.searchsorted(in_tail, places, side="right") + (_TAIL_STEPS + 1)
    return np.where(symbols > LAST - ZERO, NOWHERE, symbols).astype(np.int16)


_UNDECIDED = np.int16(1 << 14)


@cache
def _tables() -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Cumulate the weights, and tabulate the symbol that 16 leading bits alone determine."""
    cumulated = np.cumsum(np.array(weights(), np.uint64), dtype=np.uint64)
    shift = np.uint64(WEIGHT_BITS - _GUIDE_BITS)
    cells = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << shift
    first = np.searchsorted(cumulated, cells, side="right")
    last = np.searchsorted(cumulated, cells + ((np.uint64(1) << shift) - np.uint64(1)), "right")
    guide = np.where(first == last, first + (FIRST - ZERO), _UNDECIDED).astype(np.int16)
    return cumulated, guide
