"""Vectors of points of a projective space, computed from the points' numbers digit by digit."""

from __future__ import annotations

Vector = tuple[int, ...]


def word_vector(number: int, order: int, coordinates: int) -> Vector:
    """Return the vector of a message, whose first nonzero coordinate is 1."""
    free, number = _free(number, order)
    digits = _digits(number, order, free)
    return (0,) * (coordinates - 1 - free) + (1, *digits)


def item_vector(number: int, order: int, coordinates: int) -> Vector:
    """Return the vector of an item, whose last nonzero coordinate is 1."""
    free, number = _free(number, order)
    return (*_digits(number, order, free), 1) + (0,) * (coordinates - 1 - free)


def orthogonal(one: Vector, other: Vector, order: int) -> bool:
    return sum(a * b for a, b in zip(one, other, strict=True)) % order == 0


def _free(number: int, order: int) -> tuple[int, int]:
    free = 0
    while number >= order**free:
        number -= order**free
        free += 1
    return free, number


def _digits(number: int, order: int, count: int) -> Vector:
    return tuple(number // order**place % order for place in reversed(range(count)))
