"""Pairwise independent hash functions that everybody knows: a public coin.

An affine map over the field of p = 2^31 - 1 elements, of the two digits to base p of a number:
h(x) = (a_1 x_high + a_0 x_low + b mod p) mod buckets. Two different numbers fall into the same
bucket with a probability of at most 1 / buckets (1 + buckets / 2^31)^2. Privacy rests on nothing of
this.

The coefficients come from SHA-512 of a text that says what the hash is for: they need not be
trusted to have been drawn, and whoever knows the text can make them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

PRIME: Final = (1 << 31) - 1
MOST_BUCKETS: Final = 1 << 24
"""Of a hash: far fewer than `PRIME`, so that all are nearly equally likely."""

_BYTES = 16


@dataclass(frozen=True, slots=True)
class PairwiseHash:
    """One function of the family.

    >>> PairwiseHash.of("row 0").buckets(np.array([0, 1, 2]), 100).tolist()
    [81, 65, 49]

    Attributes:
        high: a_1, from 0 to `PRIME` - 1.
        low: a_0, the same.
        offset: b, the same.

    Raises:
        ValueError: a coefficient is something else.
    """

    high: int
    low: int
    offset: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value < PRIME:
                raise ValueError(f"{name} is {value!r}, must be from 0 to {PRIME - 1}")

    @classmethod
    def of(cls, text: str) -> Self:
        """The function that a text stands for."""
        digest = hashlib.sha512(text.encode()).digest()
        # 128 bits each: the remainders are uniform but for 2^-97.
        pieces = (digest[start : start + _BYTES] for start in range(0, 3 * _BYTES, _BYTES))
        return cls(*(int.from_bytes(piece, "little") % PRIME for piece in pieces))

    def buckets(self, numbers: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
        """The bucket of each number, int64 of the same shape, from 0 to buckets - 1.

        Args:
            numbers: from 0 to 2^61.
            buckets: how many there are, at most `MOST_BUCKETS`.
        """
        if numbers.max(initial=0) < PRIME:
            mixed = numbers * self.low + self.offset
        else:
            high, low = np.divmod(numbers, PRIME)
            mixed = (low * self.low + self.offset) % PRIME + high * self.high
        hashed: NDArray[np.int64] = mixed % PRIME % buckets
        return hashed

    def to_json(self) -> dict[str, int]:
        """The coefficients."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            TypeError, ValueError: it is something else.
        """
        return cls(**body)
