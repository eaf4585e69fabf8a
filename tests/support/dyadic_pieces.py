"""Dyadic decomposition of the epochs up to a given one."""

from __future__ import annotations


def dyadic_pieces(epoch: int) -> tuple[tuple[int, int], ...]:
    """Return the smallest set of intervals (order, index) covering epochs 1 to `epoch` (Fact 3.8).

    >>> dyadic_pieces(6)  # epochs 1 to 4, 5 to 6
    ((2, 1), (1, 3))
    """
    orders = reversed(range(epoch.bit_length()))
    return tuple((order, epoch >> order) for order in orders if epoch >> order & 1)
