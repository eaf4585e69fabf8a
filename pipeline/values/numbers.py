"""Numbers as values: which bucket of a range each of them lies in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box, QueryError, empty, finite, two_ends
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import ValueDomain

# Ends of ranges are edges of buckets up to rounding, as a share of a bucket's width.
_ROUNDING = 1e-6


class NumericDomain(ValueDomain):
    """Numbers from low to below high, in buckets of one width, numbered from 1. int16, or
    int32 for more than 2^15 - 1.

    >>> NumericDomain(low=0, high=80, buckets=8).parse(["25", "80", "ten"])
    ... # doctest: +NORMALIZE_WHITESPACE
    (array([3, 1, 1], dtype=int16),
     {1: "value '80' is not from 0 to below 80", 2: "value 'ten' is not a number"})

    Args:
        low: the smallest value.
        high: all values are below it.
        buckets: how many.
        initial: the value of a user before its first row; None for `low`.
        optional: whether users may have no value: none before the first row, and none where a row
            has an empty one. It is 0 then.
    """

    slots = None
    kind = "numbers"
    about = "numbers"
    asks = ("--range", "--quantile")
    numeric = True

    def __init__(
        self,
        low: float,
        high: float,
        buckets: int,
        initial: float | None = None,
        *,
        optional: bool = False,
    ) -> None:
        self.low, self.high, self.buckets, self.optional = low, high, buckets, optional
        self.size = 1 + buckets
        first = low if initial is None else initial
        self.initial = 0 if optional else int(self._buckets(np.array([first]))[0])

    @property
    def width(self) -> float:
        """Of a bucket."""
        return (self.high - self.low) / self.buckets

    def edge(self, index: float) -> float:
        """The value at so many buckets from `low`; whole numbers are edges, the last one `high`."""
        return self.low + (self.high - self.low) * index / self.buckets

    @property
    def ends(self) -> tuple[float, float]:
        """`low`, and the last number before `high`."""
        return self.low, math.nextafter(self.high, -math.inf)

    @property
    def items(self) -> tuple[str, ...]:
        """A label for each bucket: where it begins and ends."""
        edges = [f"{self.edge(index):.6g}" for index in range(self.buckets + 1)]
        return tuple(f"{low}:{high}" for low, high in pairwise(edges))

    @property
    def identity(self) -> object:
        """Where the buckets lie."""
        return self.low, self.high, self.buckets

    def range(self, text: str, option: str = "--range") -> Box:
        """From an edge of buckets to below another one."""
        low, high = two_ends(text, option)
        start = self._edge_at(finite(low, option) if low else self.low, option)
        end = self._edge_at(finite(high, option) if high else self.high, option)
        if start >= end:
            raise empty(text, option)
        return Box(text.strip(), (start,), (end,))

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        """The interval reaches from where its first bucket begins to where its last one ends."""
        return self.edge(value), self.edge(low), self.edge(high)

    def value_within(self, index: int, part: float) -> float:
        """As if users were spread evenly within a bucket."""
        return self.edge(index + part)

    def _edge_at(self, value: float, option: str) -> int:
        """The number of the edge of buckets that a value is."""
        position = (value - self.low) / self.width
        index = min(max(round(position), 0), self.buckets)
        if abs(position - index) <= _ROUNDING:
            return index
        if not 0 <= position <= self.buckets:
            raise QueryError(
                f"{option}: {value:g} lies outside of the values, {self.low:g} to {self.high:g}"
            )
        below = math.floor(position)
        raise QueryError(
            f"{option}: {value:g} lies within a bucket; the nearest edges are "
            f"{self.edge(below):.10g} and {self.edge(below + 1):.10g}"
        )

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """See `dpstream.pipeline.values.value_domains.ValueDomain.parse`."""
        numbers = np.fromiter(map(number_of, texts), np.float64, len(texts))
        within = (numbers >= self.low) & (numbers < self.high)
        buckets = self._buckets(np.where(within, numbers, self.low))
        if self.optional:
            empty = np.fromiter(map("".__eq__, map(str.strip, texts)), np.bool_, len(texts))
            buckets[empty] = 0
            within |= empty
        problems = {index: self._reason(texts[index]) for index in np.flatnonzero(~within).tolist()}
        return buckets, problems

    def _buckets(self, numbers: NDArray[np.float64]) -> NDArray[np.integer]:
        dtype = np.int16 if self.size <= np.iinfo(np.int16).max else np.int32
        share = (numbers - self.low) / (self.high - self.low)
        return (1 + np.minimum(np.floor(share * self.buckets), self.buckets - 1)).astype(dtype)

    def _reason(self, text: str) -> str:
        if math.isnan(number_of(text)):
            return f"value {shown(text)} is not a number"
        return f"value {shown(text)} is not from {self.low:.15g} to below {self.high:.15g}"


def number_of(text: str) -> float:
    """What a text says; not a number if it says none."""
    try:
        # Python's own floats allow underscores; a file of measurements does not mean them.
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
