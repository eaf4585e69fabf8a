"""Numbers as values: each number is replaced by the bucket that contains it.

Errors are also expressed relative to counts: if a count is 2 % of all users, an error of 1 % of all
users is half the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box, QueryError, empty, finite, two_ends
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.equal_buckets import EqualBuckets, number_text

SHARES: Final = (0.01, 0.05, 0.2)
"""Plausible sizes of a count, as fractions of the users."""


def relative_error_lines(
    error: float | Sequence[float], users: int, people: str = "users"
) -> Iterator[tuple[str, str]]:
    """Yield counts of plausible sizes and the RMSE `error` relative to each, as labels and texts.

    If `error` is a sequence, it has an RMSE for each of the `SHARES`.

    >>> for label, text in relative_error_lines(290.0, 50_000):
    ...     print(label, text)
      a count of 500 (1% of all users) error 58%
      a count of 2,500 (5% of all users) error 12%
      a count of 10,000 (20% of all users) error 2.9%
    """
    errors = error if isinstance(error, Sequence) else [error] * len(SHARES)
    counts = (max(1, round(share * users)) for share in SHARES)
    for count, each in sorted(dict(zip(counts, errors, strict=True)).items()):
        relative = each / count
        digits = 0 if relative >= 0.1 else 1 if relative >= 0.01 else 2
        off = f"error {relative:,.{digits}%}"
        yield f"  a count of {count:,} ({count / users:.0%} of all {people})", off


class NumericDomain(ValueDomain):
    """Numbers in [low, high), in buckets of equal width, numbered from 1.

    The dtype is int16, or int32 for more than 2^15 - 1 values.

    >>> NumericDomain(low=0, high=80, buckets=8).parse(["25", "80", "ten"])
    ... # doctest: +NORMALIZE_WHITESPACE
    (array([3, 1, 1], dtype=int16),
     {1: "value '80' is out of range; expected at least 0 and below 80",
      2: "value 'ten' is not a number"})

    A user's value before its first row is `initial`, by default `low`. With `optional`, users have
    value 0 before their first row, and after a row with an empty value.
    """

    slots = None
    kind = "numbers"
    about = "numbers"
    supported_options = ("--range", "--quantile")
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
        self.equal = EqualBuckets(low, high, buckets)
        self.width = self.equal.width
        self.size = 1 + buckets
        first = low if initial is None else initial
        self.initial = 0 if optional else 1 + self.equal.find(first)

    def edge(self, index: float) -> float:
        """Return the value `index` buckets above `low`: a bucket edge if `index` is an integer."""
        return self.equal.edge(index)

    @property
    def ends(self) -> tuple[float, float]:
        """The bound `low`, and the largest float below `high`."""
        return self.low, math.nextafter(self.high, -math.inf)

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(f"{low}:{high}" for low, high in pairwise(self.edge_labels))

    @cached_property
    def edge_labels(self) -> tuple[str, ...]:
        return tuple(self.equal.edge_labels())

    @property
    def identity(self) -> object:
        return self.low, self.high, self.buckets

    def range(self, text: str, option: str = "--range") -> Box:
        low, high = two_ends(text, option)
        start = self._edge_at(finite(low, option) if low else self.low, option)
        end = self._edge_at(finite(high, option) if high else self.high, option)
        if start >= end:
            raise empty(text, option)
        return Box(text.strip(), (start,), (end,))

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        """Return a quantile and its interval, which consists of whole buckets."""
        return self.edge(value), self.edge(low), self.edge(high)

    def value_within(self, index: int, part: float) -> float:
        """Interpolate as if users were spread evenly within a bucket."""
        return self.edge(index + part)

    def _edge_at(self, value: float, option: str) -> int:
        index = self.equal.nearest_edge(value)
        if index is not None:
            return index
        if not self.low <= value <= self.high:
            raise QueryError(
                f"{option}: {number_text(value)} is out of range; expected "
                f"{number_text(self.low)} to {number_text(self.high)}"
            )
        below = self.equal.find(value)
        raise QueryError(
            f"{option}: {number_text(value)} is inside a bucket; the nearest edges are "
            f"{number_text(self.edge(below))} and {number_text(self.edge(below + 1))}"
        )

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        numbers = np.fromiter(map(number_of, texts), np.float64, len(texts))
        within = (numbers >= self.low) & (numbers < self.high)
        dtype = np.int16 if self.size <= np.iinfo(np.int16).max else np.int32
        buckets = (1 + self.equal.find_all(np.where(within, numbers, self.low))).astype(dtype)
        if self.optional:
            empty = np.fromiter(map("".__eq__, map(str.strip, texts)), np.bool_, len(texts))
            buckets[empty] = 0
            within |= empty
        problems = {index: self._reason(texts[index]) for index in np.flatnonzero(~within).tolist()}
        return buckets, problems

    def _reason(self, text: str) -> str:
        if math.isnan(number_of(text)):
            return f"value {shown(text)} is not a number"
        low, high = number_text(self.low), number_text(self.high)
        return f"value {shown(text)} is out of range; expected at least {low} and below {high}"


def number_of(text: str) -> float:
    """Return the number that a text represents, or NaN."""
    try:
        # Python's float() accepts underscores; in measurements they are not digit separators.
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
