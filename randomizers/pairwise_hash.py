"""Public pairwise independent hash functions.

A hash applies an affine map over the field of p = 2^31 - 1 elements to a number's two digits in
base p: h(x) = (a_1 x_high + a_0 x_low + b mod p) mod buckets. Two different numbers collide with
probability at most 1 / buckets (1 + buckets / 2^31)^2. Privacy does not rely on the hashes.

The coefficients come from SHA-512 of a text that describes the purpose of the hash. So no party has
to be trusted to choose them at random, and anyone who knows the text can compute them.
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
"""Maximum number of buckets of a hash: far below `PRIME`, so that all are nearly equally likely."""

_BYTES = 16
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class PairwiseHash:
    """Hash function with the coefficients `high` a_1, `low` a_0 and `offset` b, below `PRIME`.

    >>> PairwiseHash.of("row 0").buckets(np.array([0, 1, 2]), 100).tolist()
    [81, 65, 49]
    """

    high: int
    low: int
    offset: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value < PRIME:
                raise ValueError(f"'{name}' is {value!r}; expected 0 to {PRIME - 1}")

    @classmethod
    def of(cls, text: str) -> Self:
        digest = hashlib.sha512(text.encode()).digest()
        # Remainders of 128 bits are uniform up to 2^-97.
        pieces = (digest[start : start + _BYTES] for start in range(0, 3 * _BYTES, _BYTES))
        return cls(*(int.from_bytes(piece, "little") % PRIME for piece in pieces))

    def buckets(self, numbers: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
        """Return the bucket of each number from 0 to 2^61: int64, same shape, below `buckets`."""
        if numbers.max(initial=0) < PRIME:
            mixed = numbers * self.low + self.offset
        else:
            high, low = np.divmod(numbers, PRIME)
            mixed = (low * self.low + self.offset) % PRIME + high * self.high
        hashed: NDArray[np.int64] = mixed % PRIME % buckets
        return hashed

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        return cls(**body)


def public_words(text: str, count: int) -> NDArray[np.uint64]:
    """Derive public pseudorandom integers from a text: uint64, shape (count,).

    >>> public_words("example", 2).tolist()
    [1337537168300301344, 5322710968205388336]
    """
    digest = hashlib.shake_256(text.encode()).digest(_WORD_BYTES * count)
    return np.frombuffer(digest, "<u8").astype(np.uint64)
