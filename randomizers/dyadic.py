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
