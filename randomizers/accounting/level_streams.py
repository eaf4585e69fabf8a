"""Noise for values over time, where each value raises its ancestors in a tree at every epoch.

A value raises the root and one cell on each of the M levels below it. The root is common to all
values, so replacing one value with another shifts up to M cells up and M down in an epoch. Removing
a value, however, shifts up to M + 1 cells, the root included, all in the same direction.

Each epoch has its own cells, so two streams of T epochs differ in independent cells, each shifted
by one. Omitting cells is post-processing, so more cells are never safer. The worst-case streams
therefore differ in all epochs and in as many cells as possible: the first has no value in p epochs,
the second has none in q epochs, and the values differ in the other T - p - q epochs. Then up to
T M + p - q M cells are shifted up and T M + q - p M down. For q <= p, let e = p - q: at most T M +
e cells are shifted up and T M - e M down. For p <= q the directions are exchanged. No single e is
the worst for every epsilon and delta: e = 0 has the most cells if M > 1, but under weak noise one
direction reveals more than the other. So noise is sized for e = 0 and raised if any other e up to T
requires it. Several e are covered at once: for every e from a to b, at most T M + b cells are
shifted up and T M - a M down.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    delta_spent,
    epsilon_spent,
    least_mean,
)
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows

_STEP = 1.25


def shifted_up_and_down(last_epoch: int, levels: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of bounds on the numbers of cells that two streams shift up and down.

    For any two streams, taken in one of the two orders, at least one pair bounds both numbers.
    `levels` M excludes the root.

    >>> list(shifted_up_and_down(3, 2))
    [(6, 6), (7, 4), (8, 2), (9, 0)]
    """
    exchanged = last_epoch * levels
    fewest = most = 0
    while fewest <= last_epoch:
        yield exchanged + most, exchanged - fewest * levels
        fewest = most + 1
        most = min(last_epoch, max(fewest, int(_STEP * fewest)))


def poisson_for_levels(epsilon: float, delta: float, last_epoch: int, levels: int) -> float:
    """Return the least Poisson mean known to make whole streams (epsilon, delta)-private.

    `levels` excludes the root, which has the same noise as all other nodes.

    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=1, levels=5), 1)
    180.3
    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=64, levels=2))
    4570
    """
    mean = poisson_for_rows(epsilon, delta, last_epoch * levels).mean
    # The last pairs are the most unequal. If any pair requires more noise, these require the most.
    for up, down in reversed(list(shifted_up_and_down(last_epoch, levels))):
        if delta_spent(_cells(mean, up, down), epsilon) > delta:
            mean = least_mean(epsilon, delta, partial(_cells, up=up, down=down), mean)
    return mean


def epsilon_for_levels(mean: float, delta: float, last_epoch: int, levels: int) -> float:
    """Return the least known epsilon for a whole stream; infinite if delta is too small.

    >>> round(epsilon_for_levels(4570, 1e-6, last_epoch=64, levels=2), 3)
    1.0
    """
    return max(
        epsilon_spent(_cells(mean, up, down), delta)
        for up, down in shifted_up_and_down(last_epoch, levels)
    )


def _cells(mean: float, up: int, down: int) -> list[ShiftedCells]:
    noise = PoissonNoise(mean)
    shifts = ((1, up), (-1, down))
    return [ShiftedCells(noise, shift, cells) for shift, cells in shifts if cells]
