"""Hashes of items to buckets, affine over a prime field, written as one word with the bucket.

Items 0, 1, ... are vectors x of m digits over GF(s), s a prime, the lowest digit first; that one
may be kept below a width w <= s. A hash is a direction: a non-zero vector d up to its scale, of
which there are D = (s^m - 1) / (s - 1); the bucket of x is <d, x>. The first digit of d that is not
0 is 1. Directions that begin with 0 come first, numbered as those of m - 1 digits; in the others
the digits after the 1, the lowest first, are a number from 0 on. A word is (number of the
direction) * s + bucket.

An item has one word for every direction, 1 / s of all words. Two items share a bucket for the
directions at right angles to their difference: a part q = (s^(m-1) - 1) / (s^m - 1) of them,
whichever two they are. But items on one line have such a direction in common, and with it their
collisions: fewer items on a line, and their errors are closer to being independent.

Each message draws a new direction: a direction that a device stores would link its epochs. Dummies
are Poisson: clusters of dummies in one word would reveal which directions are those of dummies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

MOST_WORDS: Final = 1 << 62
MOST_BUCKETS: Final = 1 << 29
"""Sums of products of digits must fit 64 bits."""

ROWS: Final = 32
"""Items are spread over so many lines, if there are as many; with more, decoding takes longer."""


@dataclass(frozen=True, slots=True)
class AffineHashes:
    """All hashes of items with so many digits.

    >>> hashes = AffineHashes(buckets=3, digits=2)
    >>> hashes.directions, hashes.words, hashes.overlap
    (4, 12, 0.25)
    >>> hashes.buckets_of(np.arange(4), np.full(4, 5)).tolist()  # 5 is (2, 1): 1, 2, 2 + 1, 2 + 2
    [1, 2, 0, 1]

    Attributes:
        buckets: s, a prime.
        digits: m.
        width: w, how many values the lowest digit has; None: s.

    Raises:
        ValueError: the number of buckets is no prime, or there are too many words.
    """

    buckets: int
    digits: int
    width: int | None = None

    def __post_init__(self) -> None:
        if not is_prime(self.buckets) or self.buckets > MOST_BUCKETS:
            raise ValueError(f"{self.buckets!r} buckets, must be a prime up to 2^29")
        if type(self.digits) is not int or self.digits < 1 or self.words > MOST_WORDS:
            raise ValueError(f"{self.digits!r} digits of base {self.buckets} are too many to hash")

    @classmethod
    def for_items(cls, buckets: int, items: int) -> Self:
        """With as many digits as so many items need, spread over `ROWS` lines.

        Raises:
            ValueError: as above.

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
        """How many items differ in the lowest digit only: w."""
        return self.buckets if self.width is None else self.width

    @property
    def directions(self) -> int:
        """D, how many hashes there are."""
        vectors: int = self.buckets**self.digits - 1
        return vectors // (self.buckets - 1)

    @property
    def words(self) -> int:
        """Words are from 0 to this one, exclusive."""
        return self.directions * self.buckets

    @property
    def overlap(self) -> float:
        """q, the part of its words that an item shares with any other one."""
        alike: int = self.buckets ** (self.digits - 1) - 1
        vectors: int = self.buckets**self.digits - 1
        return alike / vectors

    @property
    def shorter(self) -> AffineHashes:
        """Those of one digit less: their words are the first ones here.

        Raises:
            ValueError: there is one digit only.
        """
        return AffineHashes(self.buckets, self.digits - 1)

    def buckets_of(
        self, directions: NDArray[np.int64], items: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The bucket of each item under the hash beside it; shape (n,) all three."""
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
        """Draw one of its words for each item, counted from 0, uniformly; shape (items,)."""
        directions = rng.integers(0, self.directions, len(items), np.int64)
        return directions * self.buckets + self.buckets_of(directions, items)

    def upper_digits(self, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The m - 1 digits of numbers below s^(m-1), the lowest first."""
        digits = []
        for _ in range(self.digits - 2):
            quotient = numbers // self.buckets
            digits.append(numbers - quotient * self.buckets)
            numbers = quotient
        return [*digits, numbers]


def is_prime(number: int) -> bool:
    """By trial division: up to 2^30 in a millisecond.

    >>> [number for number in range(20) if is_prime(number)]
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    if type(number) is not int or number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
