"""Samplers with scripted random integers, at the boundaries where draws must change.

A probability that is off by 2^-64 never shows in samples. But a draw is a function of a uniform
integer. Given the integers just below and at a boundary, a sampler must return adjacent numbers; if
all integers can be tried, each number must be equally frequent.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, cast

import numpy as np

from dpstream.randomizers.byte_generator import ByteGenerator
from dpstream.randomizers.noise_tables import (
    TABLE_BITS,
    NoiseTable,
    binomial_table,
    discrete_laplace_table,
    logarithmic_table,
    poisson_table,
)
from dpstream.randomizers.normal_noise import NormalNoise

_WORD_BITS, _GUIDE_BITS = 64, 16
_WORD = (1 << _WORD_BITS) - 1
_DEVIATIONS = (1, 7, 1_000, 1 << 30)


def scripted_draws() -> dict[str, str]:
    """Return, for each sampler, which draw is wrong, or an empty text."""
    tables = (
        poisson_table(2.5),
        binomial_table(9, 0.2),
        logarithmic_table(0.6),
        discrete_laplace_table(Fraction(4, 5)),
    )
    return {
        "noise tables, at all their bounds": next(_tables(tables), ""),
        "Gaussian noise, near its bounds and in its tails": next(_normal(), ""),
        "integers drawn from bytes: all equally often": next(_bytes(), ""),
    }


class _Messages:
    """Generator that returns given 64-bit integers and rejects other draws."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def integers(self, low: int, high: int, size: int | None = None, **_: Any) -> Any:
        """Return the next integers; only full 64-bit integers can be drawn."""
        if (low, high) != (0, 1 << _WORD_BITS):
            raise ValueError(f"range is {low} to {high}; expected full 64-bit integers")
        taken = [self._words.pop(0) for _ in range(1 if size is None else size)]
        return np.uint64(taken[0]) if size is None else np.array(taken, np.uint64)


def _generator(*words: int) -> np.random.Generator:
    return cast(np.random.Generator, _Messages(*words))


def _tables(tables: Sequence[NoiseTable]) -> Iterator[str]:
    """Check that each bound is the smallest integer for which the next number is drawn."""
    for table in tables:
        for bound in table.bounds:
            for uniform in {max(0, bound - 1), min(bound, (1 << TABLE_BITS) - 1)}:
                wanted = table.first + bisect_right(table.bounds, uniform)
                drawn = int(table.draw(1, _words_of(uniform))[0])
                if drawn != wanted:
                    yield (
                        f"draws {drawn} for the 128-bit integer {uniform}; expected {wanted} from "
                        "its table"
                    )


def _words_of(uniform: int) -> np.random.Generator:
    """Return a generator whose draws make a table compare this integer (16, 48 and 64 bits)."""
    first = uniform >> TABLE_BITS - _GUIDE_BITS
    after = uniform >> _WORD_BITS & (1 << _WORD_BITS - _GUIDE_BITS) - 1
    return _generator(first, after << _GUIDE_BITS, uniform & _WORD)


def _normal() -> Iterator[str]:
    """Check that the draw n for an integer u satisfies P(below n) <= u 2^-128 < P(up to n)."""
    for deviation in _DEVIATIONS:
        noise = NormalNoise(deviation)
        unit = Decimal(1 << TABLE_BITS)
        # Maximum error of the probabilities in the table.
        doubt = Decimal(noise.distance)
        for uniform in _integers(noise):
            drawn = noise.draw(_generator(uniform >> _WORD_BITS, uniform & _WORD))
            with localcontext() as context:
                context.prec = 60
                at = Decimal(uniform) / unit
                below, up_to = (_phi(2 * drawn + side, deviation) for side in (-1, 1))
                if not below - doubt <= at <= up_to + doubt:
                    yield (
                        f"draws {drawn} with a deviation of {deviation} at {at:.6g} of the "
                        f"probability, which lies from {below:.6g} to {up_to:.6g} there"
                    )
            least, most = noise.bound(drawn - 1), noise.bound(drawn)
            if not least <= uniform < most:
                yield f"draws {drawn} for the integer {uniform}, which is outside its bounds"


def _integers(noise: NormalNoise) -> list[int]:
    """Return evenly spaced integers, some in the far tails, and all at the bounds."""
    even = [(2 * place + 1) << TABLE_BITS - 5 for place in range(16)]
    far = [1 << TABLE_BITS - bits for bits in (20, 40, 60)]
    bounds = [noise.bound(round(share * noise.deviation)) for share in (-2.5, 0.0, 0.7, 3.1)]
    at_bounds = [bound + side for bound in bounds for side in (-1, 0)]
    return [*even, *far, *((1 << TABLE_BITS) - each for each in far), *at_bounds]


def _phi(doubled: int, deviation: int) -> Decimal:
    """Return Phi(doubled / (2 deviation)) from the series of Phi - 1/2 in odd powers."""
    place = Decimal(doubled) / (2 * deviation)
    if abs(place) > 12:
        return Decimal(int(place > 0))
    term = total = place
    order = 1
    while abs(term) > Decimal(10) ** -58:
        order += 2
        term *= place * place / order
        total += term
    return Decimal("0.5") + total * (-place * place / 2).exp() / (2 * _PI).sqrt()


_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620900")


def _bytes() -> Iterator[str]:
    """Check draws from all bytes and from all pairs of bytes, except those after a rejection."""
    for width, sizes in ((1, range(1, 257)), (2, (257, 300, 1_000, 40_000, 65_536))):
        every = np.arange(1 << 8 * width).astype(f"<u{width}").tobytes()
        for size in sizes:
            if size == 1:
                continue
            again: list[int] = []
            read = iter([every])

            def give(count: int, read: Iterator[bytes] = read, again: list[int] = again) -> bytes:
                taken = next(read, None)
                if taken is not None:
                    return taken
                again.append(count)
                return bytes(count)

            drawn = ByteGenerator(give).integers(0, size, 1 << 8 * width)
            # Redrawn integers become 0 and come last.
            often = np.bincount(drawn, minlength=size)
            often[0] -= sum(again) // width
            if len(set(often.tolist())) > 1 or often[0] != (1 << 8 * width) // size:
                yield (
                    f"draws integers below {size} from {width} bytes between {often.min():,} and "
                    f"{often.max():,} times of {math.prod([1 << 8 * width]):,}"
                )
