"""How much noise values over time need, when each raises its ancestors in a tree at every epoch.

With M levels below the root, two different values raise up to M cells each in an epoch, all of them
different; the root is raised by both. So exchanging them shifts up to M cells up and M down. A
value exchanged for none, though, shifts up to M + 1 cells, the root too, and all one way.

Cells of different epochs are different, so what two streams of T epochs differ in are independent
cells, each shifted by one. To leave out cells is a post-processing of what is seen: more of them
are never safer. So only streams matter that differ in all epochs and in as many cells as they can:
p epochs in which the first holds nothing, q in which the second does, and T - p - q exchanges.
Up to T M + p - q M cells are then shifted up, and T M + q - p M down. For q <= p and e = p - q that
is no more than T M + e up and T M - e M down; for p <= q the same with the directions exchanged.
Neither is larger for every epsilon and delta: e = 0 has the most cells if M > 1, but one direction
tells more than the other where noise is weak. So noise is sized on e = 0, and then enough for every
other e up to T, several of them at once: for e from a to b there are at most T M + b up and
T M - a M down.
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
    """Most cells that two streams shift up, and most that they shift down at the same time.

    Any two streams, in one order or the other, differ in no more cells than one of these has.

    Args:
        last_epoch: T, number of epochs.
        levels: M, without the root.

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
    """The least known mean of Poisson noise that is (epsilon, delta)-private for whole streams.

    Args:
        epsilon: wanted.
        delta: wanted.
        last_epoch: number of epochs.
        levels: without the root, which has noise like all others.

    Raises:
        ValueError: something is out of range.

    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=1, levels=5), 1)
    180.3
    >>> round(poisson_for_levels(1.0, 1e-6, last_epoch=64, levels=2))
    4570
    """
    mean = poisson_for_rows(epsilon, delta, last_epoch * levels).mean
    # The last are the least alike: where there is one that asks for more, they ask for the most.
    for up, down in reversed(list(shifted_up_and_down(last_epoch, levels))):
        if delta_spent(_cells(mean, up, down), epsilon) > delta:
            mean = least_mean(epsilon, delta, partial(_cells, up=up, down=down), mean)
    return mean


def epsilon_for_levels(mean: float, delta: float, last_epoch: int, levels: int) -> float:
    """The least known epsilon for a delta; infinite where delta is not enough.

    Args:
        mean: of the noise of a cell.
        delta: wanted, of a whole stream.
        last_epoch: number of epochs.
        levels: without the root.

    Raises:
        ValueError: something is out of range.

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
