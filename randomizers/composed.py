"""Composed randomizers of k signs, as an exact distribution over the Hamming distance.

All inputs and all positions are treated alike. So the probability of an output depends only on d,
the number of signs in which it differs from the input. k + 1 integer weights determine it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.draws import draw_categories


@dataclass(frozen=True, slots=True)
class ComposedLaw:
    """Output distribution of a composed randomizer of k signs.

    Every sign vector at Hamming distance d from the input has the weight ``weights[d]``, one of k +
    1 positive integers. For any two inputs, the ratio of an output's probabilities is at most that
    of the largest to the smallest weight. This also holds if only some of the signs are used, and
    if the inputs are chosen in view of earlier outputs.

    >>> ComposedLaw((3, 1)).c_gap, ComposedLaw((3, 1)).probability(0)
    (0.5, Fraction(3, 4))

    Reference: *Randomize the Future*, Section 5.2.
    """

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.weights) < 2:
            raise ValueError(
                f"got {len(self.weights)} weights; expected k + 1 for k signs, with k at least 1"
            )
        if not all(type(weight) is int and weight > 0 for weight in self.weights):
            raise ValueError("a sign weight is out of range; expected positive integers")

    @property
    def k(self) -> int:
        return len(self.weights) - 1

    @property
    def masses(self) -> tuple[int, ...]:
        """Total weight of the sign vectors at each distance from 0 to k."""
        return tuple(
            math.comb(self.k, distance) * weight for distance, weight in enumerate(self.weights)
        )

    @property
    def exact_c_gap(self) -> Fraction:
        """P(a sign is kept) - P(it is reversed), the same for all signs."""
        masses = self.masses
        advantage = sum(mass * (self.k - 2 * distance) for distance, mass in enumerate(masses))
        return Fraction(advantage, self.k * sum(masses))

    @property
    def c_gap(self) -> float:
        return float(self.exact_c_gap)

    @property
    def loss(self) -> float:
        """Privacy loss: ln(largest / smallest weight), rounded up."""
        return log_rounded_up(Fraction(max(self.weights), min(self.weights)))

    def probability(self, distance: int) -> Fraction:
        return Fraction(self.weights[distance], sum(self.masses))

    def sample(
        self, count: int, rng: np.random.Generator, masses: Sequence[int] | None = None
    ) -> NDArray[np.int8]:
        """Randomize a vector of k ones, `count` times; int8, shape (count, k), +1 or -1.

        The distance is drawn first, then the signs that differ; every probability is exact.
        `masses` are the total weights of the distances; by default, those of sign vectors.
        """
        left = draw_categories(masses or self.masses, count, rng).astype(np.uint16)
        signs = np.empty((self.k, count), np.int8)
        for position, row in enumerate(signs):
            # All subsets of the remaining positions with the size still needed are equally likely.
            choices = self.k - position
            differs = rng.integers(0, choices, count, dtype=_narrowest(choices)) < left
            left -= differs
            np.subtract(1, 2 * differs.view(np.int8), out=row)
        return np.ascontiguousarray(signs.T)

    def to_json(self) -> dict[str, Any]:
        return {"weights": [[len(list(run)), str(weight)] for weight, run in groupby(self.weights)]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            return cls(tuple(_unpacked(body["weights"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"invalid distribution of signs: {error!r}") from error


MAX_SIGNS = 1024
"""Maximum number of signs composed into one mechanism: calibrating more takes minutes."""


@lru_cache(maxsize=1024)
def log_rounded_up(ratio: Fraction, times: int = 1) -> float:
    """Return times * ln(ratio), rounded up to a float, for ratio >= 1."""
    with localcontext() as context:
        context.prec = 80
        # `next_plus` covers the rounding of the quotient, of the logarithm and of the product.
        quotient = (Decimal(ratio.numerator) / Decimal(ratio.denominator)).next_plus()
        exact = (times * quotient.ln().next_plus()).next_plus() if ratio > 1 else Decimal(0)
        nearest = float(exact)
        return nearest if Decimal(nearest) >= exact else math.nextafter(nearest, math.inf)


def _narrowest(choices: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if choices <= 256 else np.uint16


def _unpacked(runs: list[list[Any]]) -> Iterator[int]:
    total = 0
    for length, weight in runs:
        total += length
        if length < 1 or total > MAX_SIGNS + 1:
            raise ValueError(
                f"a run has {length} weights, for a total of {total}; expected at least 1 per run, "
                f"and at most {MAX_SIGNS + 1} in total"
            )
        yield from [int(weight)] * length
