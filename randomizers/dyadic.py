"""Dyadic intervals: how the epochs of a horizon are cut up, for devices and estimators alike.

Interval (h, j), of order h from 0 and index j from 1, holds the epochs after (j-1) 2^h up to j 2^h
(Definition 3.2 of "Randomize the Future").
"""

from __future__ import annotations


def orders_due(epoch: int) -> int:
    """How many intervals end at an epoch: one of each order from 0 up to this, exclusive.

    >>> [orders_due(epoch) for epoch in (1, 2, 3, 4)]
    [1, 2, 1, 3]
    """
    return (epoch & -epoch).bit_length()


def dyadic_pieces(epoch: int) -> tuple[tuple[int, int], ...]:
    """The fewest intervals (order, index) that make up the epochs 1 to `epoch` (Fact 3.8).

    >>> dyadic_pieces(6)  # epochs 1 to 4, 5 to 6
    ((2, 1), (1, 3))
    """
    orders = reversed(range(epoch.bit_length()))
    return tuple((order, epoch >> order) for order in orders if epoch >> order & 1)
