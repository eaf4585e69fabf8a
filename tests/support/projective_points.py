"""Points of a projective space as vectors, from their numbers: digit by digit, for any size."""

from __future__ import annotations

Vector = tuple[int, ...]


def word_vector(number: int, order: int, coordinates: int) -> Vector:
    """Of a word: as a number to the base q it begins with a 1, and is one of q^k to do so."""
    free, number = _free(number, order)
    digits = _digits(number, order, free)
    return (0,) * (coordinates - 1 - free) + (1, *digits)


def item_vector(number: int, order: int, coordinates: int) -> Vector:
    """Of an item: it ends with a 1."""
    free, number = _free(number, order)
    return (*_digits(number, order, free), 1) + (0,) * (coordinates - 1 - free)


def orthogonal(one: Vector, other: Vector, order: int) -> bool:
    """Whether the product is 0."""
    return sum(a * b for a, b in zip(one, other, strict=True)) % order == 0


def _free(number: int, order: int) -> tuple[int, int]:
    free = 0
    while number >= order**free:
        number -= order**free
        free += 1
    return free, number


def _digits(number: int, order: int, count: int) -> Vector:
    return tuple(number // order**place % order for place in reversed(range(count)))
