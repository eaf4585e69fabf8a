"""What shifted noise cells give away: privacy loss distributions, composed numerically.

Somebody's message shifts a cell: what is seen is the noise, or the noise plus one. Other messages
are constants, so the view of an observer is made of independent cells, some of them shifted, and
its privacy loss is a sum of independent ones
(`dpstream.randomizers.accounting.loss_distributions`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import CellNoise
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.search import least_parameter

LEAST_DELTA = 1e-12
"""Far above what is charged for the tails of the noise, of however many cells."""

TAIL = 1e-30
"""Probability that the noise leaves the interval computed with, counted as certain loss."""
LEAST_MASS = 1e-60
"""Outcomes less likely than this are counted in the same way."""
GRID_FINENESS = 0.025
"""Width of a grid over the root mean square of the losses: adds 1e-4 to their variance."""


@dataclass(frozen=True, slots=True)
class ShiftedCells:
    """Cells of one kind in which two neighbours differ.

    Attributes:
        noise: of each of them.
        shift: number of messages that the second neighbour has more than the first; not 0.
        cells: how many there are, at least 1.

    Raises:
        ValueError: the shift is 0, or there is no cell.
    """

    noise: CellNoise
    shift: int
    cells: int

    def __post_init__(self) -> None:
        if self.shift == 0 or self.cells < 1:
            raise ValueError(f"{self.cells} cells shifted by {self.shift}: nothing to tell apart")


def shifted_losses(noise: CellNoise, shift: int, tail: float = TAIL) -> Losses:
    """P is the law of the noise, Q that of the noise plus `shift`.

    For Poisson noise and a shift of 1, the loss of z dummies is ln(lambda / z): none at all give
    the first neighbour away. With a shift of -1, it is ln((z + 1) / lambda).

    Args:
        noise: of the cell.
        shift: positive if the second neighbour has more messages, negative if the first has.
        tail: probability on either side that is not computed with but counted in `certain`.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> told = shifted_losses(PoissonNoise(2.0), 1)
    >>> told.losses[:3].round(3).tolist(), round(told.certain, 6)  # ln 2, ln 1, ln 2/3; e^-2
    ([0.693, 0.0, -0.405], 0.135335)
    """
    low, high = noise.window(tail)
    masses, error = noise.weights(low, high)
    # The counts z for which z - shift can be, too.
    first, last = max(low, shift), int(min(high, noise.largest + shift))
    possible = np.zeros(len(masses), np.bool_)
    if first <= last:
        possible[first - low : last - low + 1] = masses[first - low : last - low + 1] > LEAST_MASS
    certain = float(masses[~possible].sum()) * (1 + 2 * error) + 2 * tail
    if not possible.any():
        return Losses(np.zeros(1), np.zeros(1), certain, 0.0, 0.0)
    ratios = noise.log_ratios(np.arange(min(first, first - shift) + 1, max(last, last - shift) + 1))
    losses = math.copysign(1, shift) * rounding.window_sums(ratios, abs(shift))
    slack = 8 * rounding.FUNCTION * rounding.window_sums(np.abs(ratios), abs(shift)).max()
    kept = possible[first - low : last - low + 1]
    return Losses(losses[kept], masses[possible], certain, float(slack), error)


def delta_spent(parts: Sequence[ShiftedCells], epsilon: float) -> float:
    """The least delta for an epsilon, whichever of the neighbours is the true one; rounded up.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> noise = PoissonNoise(42.7)
    >>> f"{delta_spent([ShiftedCells(noise, 1, 1), ShiftedCells(noise, -1, 1)], 1.0):.1e}"
    '9.9e-07'
    """
    return max(each.delta(epsilon) for each in _directions(parts))


def epsilon_spent(parts: Sequence[ShiftedCells], delta: float) -> float:
    """The least epsilon for a delta, whichever of the neighbours is the true one; rounded up.

    Raises:
        ValueError: delta is not from `LEAST_DELTA` to below 1.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> noise = PoissonNoise(42.75)
    >>> parts = [ShiftedCells(noise, 1, 1), ShiftedCells(noise, -1, 1)]
    >>> round(epsilon_spent(parts, 1e-6), 2)
    1.0
    """
    check_target(1.0, delta)
    return max(each.epsilon(delta) for each in _directions(parts))


def least_mean(
    epsilon: float,
    delta: float,
    parts: Callable[[float], Sequence[ShiftedCells]],
    guess: float,
) -> float:
    """The least mean for which cells are private enough, from above within 1e-5 of itself.

    Args:
        epsilon: wanted.
        delta: wanted.
        parts: the shifted cells, given the mean of their noise (or what stands for it, larger
            being safer). That the result is private is checked, whatever this is.
        guess: where to begin.

    Raises:
        ValueError: epsilon or delta is out of range, or no mean up to 10^12 is enough.
    """
    check_target(epsilon, delta)
    return least_parameter(lambda mean: delta_spent(parts(mean), epsilon), delta, guess)


def check_target(epsilon: float, delta: float) -> None:
    """Raise `ValueError` unless epsilon is positive and finite and delta can be computed with."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}, must be positive and finite")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta is {delta!r}, must be from {LEAST_DELTA:g} to below 1")


def delta_of_tables(epsilon: float, distance: float, draws: int) -> float:
    """What delta grows by when noise is drawn from tables instead of from its law.

    A law at total variation distance t from one that is (epsilon, delta)-private is
    (epsilon, delta + (1 + e^epsilon) t)-private.

    Args:
        epsilon: of the guarantee.
        distance: of a table from its law, `dpstream.randomizers.noise_tables.NoiseTable.distance`.
        draws: how many are made in all that the guarantee is about.
    """
    return (1 + math.exp(epsilon)) * draws * distance


def grid_width(parts: Sequence[ShiftedCells]) -> float:
    """The width of a grid of losses, as wide as the mean loss allows."""
    squares = sum(part.cells * part.shift**2 / part.noise.variance for part in parts)
    return GRID_FINENESS * math.sqrt(squares / sum(part.cells for part in parts))


def _directions(parts: Sequence[ShiftedCells]) -> list[LossDistribution]:
    kinds: Counter[tuple[CellNoise, int]] = Counter()
    for part in parts:
        kinds[part.noise, part.shift] += part.cells
    mirrored = {(noise, -shift): cells for (noise, shift), cells in kinds.items()}
    width = grid_width(parts)
    return [
        composed([(shifted_losses(*kind), cells) for kind, cells in each.items()], width)
        for each in ([kinds] if kinds == mirrored else [kinds, mirrored])
    ]
