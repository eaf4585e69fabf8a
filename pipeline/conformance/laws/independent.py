"""Parts that are drawn independently of each other, such as the epochs of a horizon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from math import prod
from typing import TypeVar

Seen = TypeVar("Seen")


def independent(parts: Iterable[Mapping[Seen, Fraction]]) -> dict[tuple[Seen, ...], Fraction]:
    """What parts show together: all tuples of what each shows, with their probabilities.

    Args:
        parts: of each, the probability of all that it may show.

    >>> coin = {0: Fraction(1, 4), 1: Fraction(3, 4)}
    >>> independent([coin, coin])[1, 0]
    Fraction(3, 16)
    """
    return {
        tuple(seen for seen, _ in drawn): prod((likely for _, likely in drawn), start=Fraction(1))
        for drawn in product(*(part.items() for part in parts))
    }
