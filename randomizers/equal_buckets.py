"""Buckets of equal width over a range of numbers, with exact edges.

In every client language, a float stands for the shortest decimal that converts to it. So 37.5 is
always in the bucket that starts at 37.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BUCKETS = 1 << 12

# Rounding error of a position computed with floats, relative to the largest number involved.
_SLACK = 8 * np.finfo(np.float64).eps
# Far above the subnormal floats, whose relative precision is lower.
_FINEST = 1e-290
# Edges in labels, job files and queries are exact up to this fraction of a bucket's width.
_TOLERANCE = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class EqualBuckets:
    """Numbers in [low, high), divided into `count` buckets of equal width.

    >>> buckets = EqualBuckets(35.2, 41.6, 64)
    >>> buckets.find(37.5), buckets.edge(23), buckets.edge_at(37.5)
    (23, 37.5, Fraction(23, 1))
    """

    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        low, high = float(self.low), float(self.high)
        if not (math.isfinite(high - low) and low < high):
            raise ValueError(f"'high' is {high}; expected a number above low, {low}")
        finest = max(4 * math.ulp(max(abs(low), abs(high))), _FINEST)
        if (high - low) / self.count < finest:
            raise ValueError(
                f"{self.count:,} buckets from {low} to {high} are narrower than {finest:.2g}, the "
                "floating-point resolution at this magnitude. Use fewer buckets"
            )

    @property
    def width(self) -> float:
        return float(self._width)

    @property
    def _width(self) -> Fraction:
        return (decimal(self.high) - decimal(self.low)) / self.count

    def find(self, number: float) -> int:
        return math.floor(self.edge_at(number))

    def find_all(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        position = (numbers - self.low) / (self.high - self.low) * self.count
        found = np.floor(position).astype(np.int64)
        # Float arithmetic decides, except near an edge.
        nearest = np.rint(position).astype(np.int64)
        largest = max(abs(self.low), abs(self.high)) / self.width + self.count
        unsure = np.flatnonzero(np.abs(position - nearest) <= _SLACK * largest)
        beside = nearest[unsure]
        reached = np.zeros(self.count + 1, np.bool_)
        reached[beside] = True
        first = np.zeros(self.count + 1)
        for index in np.flatnonzero(reached).tolist():
            edge = self.edge(index)
            first[index] = edge if self.edge_at(edge) >= index else math.nextafter(edge, math.inf)
        found[unsure] = beside - (numbers[unsure] < first[beside])
        return found

    def edge_at(self, number: float) -> Fraction:
        """Return a number's distance from `low` in bucket widths; for an edge, an integer."""
        return (decimal(number) - decimal(self.low)) / self._width

    def nearest_edge(self, number: float) -> int | None:
        """Return the index of the edge that a number equals within `_TOLERANCE`, or None."""
        position = self.edge_at(number)
        index = min(max(round(position), 0), self.count)
        return index if abs(position - index) <= _TOLERANCE else None

    def edge(self, index: float) -> float:
        return float(decimal(self.low) + self._width * Fraction(index))

    def edge_labels(self) -> list[str]:
        """Return distinct labels for the count + 1 edges, with as few decimals as possible."""
        # Integers are faster than fractions: edge i is (first + step * i) / unit.
        low, width = decimal(self.low), self._width
        unit = math.lcm(low.denominator, width.denominator)
        first, step = int(low * unit), int(width * unit)
        decimals = max(0, -math.floor(math.log10(self.width)))
        while True:
            scale = 10**decimals
            rounded = [
                (2 * scale * (first + step * index) + unit) // (2 * unit)
                for index in range(self.count + 1)
            ]
            if all(
                abs(number * unit - scale * (first + step * index)) <= scale * step * _TOLERANCE
                for index, number in enumerate(rounded)
            ):
                return [number_text(number / scale) for number in rounded]
            decimals += 1


def check_numbers(low: float, high: float, initial: float | None, buckets: int) -> None:
    """Raise `ValueError` unless a job can split [low, high), with `initial`, into 2^n buckets."""
    for name, value in (("low", low), ("high", high), ("initial", initial)):
        if value is not None and not _is_number(value):
            raise ValueError(f"'{name}' is {value!r}; expected a number")
    if low >= high or not math.isfinite(float(high) - float(low)):
        raise ValueError(f"'high' is {high:g}; expected a number above 'low', {low:g}")
    if initial is not None and not low <= initial < high:
        raise ValueError(f"'initial' is {initial:g}; expected at least {low:g} and below {high:g}")
    if type(buckets) is not int or not 2 <= buckets <= MAX_BUCKETS:
        raise ValueError(f"'buckets' is {buckets!r}; expected an integer from 2 to {MAX_BUCKETS:,}")
    levels = (buckets - 1).bit_length()
    if buckets != 1 << levels:
        raise ValueError(
            f"'buckets' is {buckets}; expected a power of two, such as {1 << levels - 1} or "
            f"{1 << levels}"
        )
    EqualBuckets(low, high, buckets)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def decimal(number: float) -> Fraction:
    """Return the shortest decimal that converts to a float, as an exact fraction."""
    return Fraction(number if isinstance(number, int) else repr(float(number)))


def rounded_text(number: float, width: float, finer: int = 1) -> str:
    """Format a number, rounded to a tenth of a bucket's width or finer.

    `finer` is the number of digits after the leading digit of the width.

    >>> rounded_text(33.21734, 1.0), rounded_text(1700003611.23, 3600.0), rounded_text(37.5, 0.1)
    ('33.2', '1700003611', '37.5')
    """
    return number_text(round(number, max(0, finer - math.floor(math.log10(width)))))


def edge_text(number: float, width: float) -> str:
    """Format an edge, rounded to a millionth of a bucket's width."""
    return rounded_text(number, width, 6)


def number_text(number: Any) -> str:
    """Format a float as its shortest decimal; an integer has no decimal point.

    >>> number_text(1000016.0), number_text(37.6), number_text(2e300)
    ('1000016', '37.6', '2e+300')
    """
    return repr(float(number)).removesuffix(".0")
