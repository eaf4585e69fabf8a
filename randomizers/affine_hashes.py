"""Affine hashes of items to buckets over a prime field, with hash and bucket in one message.

Items 0, 1, ... are vectors x of m digits over GF(s), for a prime s, least significant digit first.
A hash is a direction: a non-zero vector d up to scaling, so its first non-zero digit is 1. There
are D = (s^m - 1) / (s - 1) directions. The bucket of x is <d, x>. Directions that start with 0 come
first, numbered like the directions of m - 1 digits. The remaining directions start with 1; their
other digits, least significant first, form a number counted from 0. A message is (direction number)
* s + bucket.

An item has one message for each direction, 1 / s of all messages. Any two items share a bucket for
the directions orthogonal to their difference: a fraction q = (s^(m-1) - 1) / (s^m - 1) of all
directions. All pairs of items on one line share such directions, so their collisions coincide. With
fewer items on a line, their errors are closer to independent.

A new direction is drawn for each message: a stored direction would link a device's epochs. Dummies
are Poisson: clusters of equal dummies would reveal which directions belong to dummies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

MOST_WORDS: Final = 1 << 62
MOST_BUCKETS: Final = 1 << 29
"""Maximum number of buckets: sums of products of digits must fit in 64 bits."""

ROWS: Final = 32
"""Number of lines that items are spread over, if enough exist; more lines slow down decoding."""


@dataclass(frozen=True, slots=True)
class AffineHashes:
    """All affine hashes from items with m `digits`, the lowest below `width`, to s `buckets`.

    >>> hashes = AffineHashes(buckets=3, digits=2)
    >>> hashes.directions, hashes.words, hashes.overlap
    (4, 12, 0.25)
    >>> hashes.buckets_of(np.arange(4), np.full(4, 5)).tolist()  # 5 is (2, 1): 1, 2, 2 + 1, 2 + 2
    [1, 2, 0, 1]
    """

    buckets: int
    digits: int
    width: int | None = None

    def __post_init__(self) -> None:
        if not is_prime(self.buckets) or self.buckets > MOST_BUCKETS:
            raise ValueError(f"'buckets' is {self.buckets!r}; expected a prime up to 2^29")
        if type(self.digits) is not int or self.digits < 1 or self.words > MOST_WORDS:
            raise ValueError(
                f"'digits' is {self.digits!r}; expected at least 1, with at most 2^62 messages"
            )

    @classmethod
    def for_items(cls, buckets: int, items: int) -> Self:
        """Return hashes whose digits suffice for all items, spread over at most `ROWS` lines.

        >>> AffineHashes.for_items(buckets=101, items=200)
        AffineHashes(buckets=101, digits=2, width=7)
        """
        digits, held = 1, buckets
        while held < items:
            digits, held = digits + 1, held * max(2, buckets)
        rows = min(ROWS, held // max(2, buckets))
        return cls(buckets, digits, min(buckets, -(-items // rows)) if digits > 1 else buckets)

    @property
    def row(self) -> int:
        return self.buckets if self.width is None else self.width

    @property
    def directions(self) -> int:
        vectors: int = self.buckets**self.digits - 1
        return vectors // (self.buckets - 1)

    @property
    def words(self) -> int:
        return self.directions * self.buckets

    @property
    def overlap(self) -> float:
        """q, the fraction of an item's messages that it shares with any one other item."""
        alike: int = self.buckets ** (self.digits - 1) - 1
        vectors: int = self.buckets**self.digits - 1
        return alike / vectors

    @property
    def shorter(self) -> AffineHashes:
        return AffineHashes(self.buckets, self.digits - 1)

    def buckets_of(
        self, directions: NDArray[np.int64], items: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the bucket of each item under its direction; all arrays have shape (n,)."""
        if self.digits == 1:
            return items
        shorter = self.shorter
        steps, above = directions - shorter.directions, items // self.row
        buckets = items - above * self.row
        for step, digit in zip(self.upper_digits(steps), self.upper_digits(above), strict=True):
            buckets += step * digit
        buckets %= self.buckets
        (begin_with_0,) = np.nonzero(steps < 0)
        if len(begin_with_0):
            buckets[begin_with_0] = shorter.buckets_of(
                directions[begin_with_0], above[begin_with_0]
            )
        return buckets

    def draw(self, items: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        directions = rng.integers(0, self.directions, len(items), np.int64)
        return directions * self.buckets + self.buckets_of(directions, items)

    def upper_digits(self, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the m - 1 digits of numbers below s^(m-1), least significant first."""
        digits = []
        for _ in range(self.digits - 2):
            quotient = numbers // self.buckets
            digits.append(numbers - quotient * self.buckets)
            numbers = quotient
        return [*digits, numbers]


def is_prime(number: int) -> bool:
    """Return whether a number is prime, by trial division: 1 ms for numbers up to 2^30.

    >>> [number for number in range(20) if is_prime(number)]
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    if type(number) is not int or number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
