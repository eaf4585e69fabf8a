"""Noise of values over time, when each raises its ancestors in a tree at every epoch.

With M levels below the root, two different values raise up to M cells each in an epoch, all of them
different; the root is raised by both. So exchanging them shifts up to M cells up and M down. A
value exchanged for none, though, shifts up to M + 1 cells, the root too, and all one way.

Cells of different epochs are different, so two streams of T epochs differ in independent cells,
each shifted by one. Leaving out cells is post-processing of what is seen: more of them are never
safer. So only streams matter that differ in all epochs and in as many cells as possible: p epochs
in which the first is empty, q in which the second is, and T - p - q exchanges. Up to T M + p - q M
cells are then shifted up, and T M + q - p M down. For q <= p and e = p - q that is at most
T M + e up and T M - e M down; for p <= q the same with the directions exchanged. Neither is larger
for every epsilon and delta: e = 0 has the most cells if M > 1, but one direction reveals more than
the other where noise is weak. So noise is sized for e = 0, and raised if any other e up to T
requires it. Several are covered at once: e from a to b has at most T M + b up and T M - a M down.
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
    """Yield bounds on the cells that two streams shift up, and down at the same time.

    Any two streams, in one order or the other, differ in at most the cells of one of these.
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
    """Return the least known Poisson mean that is (epsilon, delta)-private for whole streams.

    `levels` excludes the root, which has noise like all others.

    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=1, levels=5), 1)
    180.3
    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=64, levels=2))
    4570
    """
    mean = poisson_for_rows(epsilon, delta, last_epoch * levels).mean
    # The last are the least alike: if any of them requires more noise, they require the most.
    for up, down in reversed(list(shifted_up_and_down(last_epoch, levels))):
        if delta_spent(_cells(mean, up, down), epsilon) > delta:
            mean = least_mean(epsilon, delta, partial(_cells, up=up, down=down), mean)
    return mean


def epsilon_for_levels(mean: float, delta: float, last_epoch: int, levels: int) -> float:
    """Return the least known epsilon of a whole stream; infinite if delta is too small.

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
