"""What shifted noise cells give away: privacy loss distributions, composed numerically.

Somebody's message shifts a cell: what is seen is the noise, or the noise plus one. Other messages
are constants, so the view of an observer is made of independent cells, some of them shifted, and
its privacy loss is a sum of independent ones. Their distributions are put on a grid and composed by
fast Fourier transform (Koskela, Jalko and Honkela 2020; `dp_accounting`).

Rounding to the grid is against ourselves: the probabilities that an outcome has in both worlds are
split between the two neighbouring points of the grid, so that each part has the loss of its point
("Connect the Dots", Doroshenko et al. 2022). Whoever sees the outcome alone sees less than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from numpy.typing import NDArray
from scipy.optimize import brentq

from randomizers.accounting.cell_noise import CellNoise

LEAST_DELTA = 1e-11
"""Below it what is charged for the rounding of the Fourier transform would begin to matter."""

# Probability that the noise leaves the interval computed with: counted as certain loss.
_TAIL = 1e-20
# Mass that a composition of more than a few cells leaves beyond the grid, counted in the same way.
_TRUNCATION = 1e-16
_FEW = 16
# Charged to delta for the rounding of the Fourier transform, measured at 3e-15 for 1,024 cells.
_ROUNDING = 5e-14
GRID_FINENESS = 0.025
"""Width of a grid over the root mean square of the losses: adds 1e-4 to their variance."""
# How closely the least mean is found; what is returned lies above it.
_TOLERANCE = 1e-5
_FIRST_STEP = 1.2
_MOST_EXCESS = 10.0
_MOST_MEAN = 1e12


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


@dataclass(frozen=True, slots=True)
class ShiftedLosses:
    """The privacy loss of one shifted cell, outcome by outcome.

    Attributes:
        losses: float64, ln(P / Q) of outcomes that both neighbours may give.
        masses: float64, their probabilities P with the first neighbour.
        certain: probability of all other outcomes, those far from the mean included.
    """

    losses: NDArray[np.float64]
    masses: NDArray[np.float64]
    certain: float


def shifted_losses(noise: CellNoise, shift: int, tail: float = _TAIL) -> ShiftedLosses:
    """P is the law of the noise, Q that of the noise plus `shift`.

    For Poisson noise and a shift of 1, the loss of z dummies is ln(lambda / z): none at all give
    the first neighbour away. With a shift of -1, it is ln((z + 1) / lambda).

    Args:
        noise: of the cell.
        shift: positive if the second neighbour has more messages, negative if the first has.
        tail: probability on either side that is not computed with but counted in `certain`.

    >>> from randomizers.accounting.cell_noise import PoissonNoise
    >>> told = shifted_losses(PoissonNoise(2.0), 1)
    >>> told.losses[:3].round(3).tolist(), round(told.certain, 6)  # ln 2, ln 1, ln 2/3; e^-2
    ([0.693, 0.0, -0.405], 0.135335)
    """
    low, high = noise.window(tail)
    bottom, top = max(0, low - max(shift, 0)), int(min(high - min(shift, 0), noise.largest))
    logs = noise.log_weights(bottom, top)
    counts = np.arange(low, high + 1)
    other = counts - shift
    possible = (other >= bottom) & (other <= top)
    masses = np.exp(logs[counts - bottom])
    losses = logs[counts[possible] - bottom] - logs[other[possible] - bottom]
    return ShiftedLosses(losses, masses[possible], float(masses[~possible].sum()) + 2 * tail)


def delta_spent(parts: Sequence[ShiftedCells], epsilon: float) -> float:
    """The least delta for an epsilon, whichever of the neighbours is the true one; rounded up.

    >>> from randomizers.accounting.cell_noise import PoissonNoise
    >>> noise = PoissonNoise(42.7)
    >>> f"{delta_spent([ShiftedCells(noise, 1, 1), ShiftedCells(noise, -1, 1)], 1.0):.1e}"
    '9.9e-07'
    """
    return max(float(each.get_delta_for_epsilon(epsilon)) for each in _directions(parts))


def epsilon_spent(parts: Sequence[ShiftedCells], delta: float) -> float:
    """The least epsilon for a delta, whichever of the neighbours is the true one; rounded up.

    Raises:
        ValueError: delta is not from `LEAST_DELTA` to below 1.

    >>> from randomizers.accounting.cell_noise import PoissonNoise
    >>> noise = PoissonNoise(42.75)
    >>> parts = [ShiftedCells(noise, 1, 1), ShiftedCells(noise, -1, 1)]
    >>> round(epsilon_spent(parts, 1e-6), 2)
    1.0
    """
    check_target(1.0, delta)
    # Its search along the grid is exact but for the last digits.
    return max(float(each.get_epsilon_for_delta(delta)) for each in _directions(parts)) * (1 + 1e-9)


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
    return least_parameter(lambda mean: math.log(delta_spent(parts(mean), epsilon) / delta), guess)


def least_parameter(excess: Callable[[float], float], guess: float) -> float:
    """The least positive number at which a decreasing function is not above 0, from above.

    Args:
        excess: the function, which may be infinite.
        guess: where to begin.

    Raises:
        ValueError: there is none up to 10^12.
    """
    low = high = guess
    step = _FIRST_STEP
    while excess(high) > 0:
        low, high, step = high, high * step, step**2
        if high > _MOST_MEAN:
            raise ValueError(f"no amount of noise up to {_MOST_MEAN:g} messages a cell is enough")
    while low == high or excess(low) <= 0:
        low, high, step = low / step, low, step**2
        if low < 1 / _MOST_MEAN:
            return high

    def clipped(log: float) -> float:
        return min(max(excess(math.exp(log)), -_MOST_EXCESS), _MOST_EXCESS)

    root = math.exp(brentq(clipped, math.log(low), math.log(high), xtol=_TOLERANCE))
    while excess(root) > 0:
        root *= 1 + _TOLERANCE
    return float(root)


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
        distance: of a table from its law, `randomizers.noise_tables.NoiseTable.distance`.
        draws: how many are made in all that the guarantee is about.
    """
    return (1 + math.exp(epsilon)) * draws * distance


def _directions(parts: Sequence[ShiftedCells]) -> list[DensePLDPmf]:
    mirrored = [ShiftedCells(part.noise, -part.shift, part.cells) for part in parts]
    alike = all(part in parts for part in mirrored)
    # One grid for all: as wide as the mean loss allows.
    squares = sum(part.cells * part.shift**2 / part.noise.variance for part in parts)
    width = GRID_FINENESS * math.sqrt(squares / sum(part.cells for part in parts))
    return [
        composed([(shifted_losses(part.noise, part.shift), part.cells) for part in each], width)
        for each in ([parts] if alike else [parts, mirrored])
    ]


def composed(kinds: Sequence[tuple[ShiftedLosses, int]], width: float) -> DensePLDPmf:
    """The privacy loss distribution of independent cells of several kinds.

    Args:
        kinds: what a cell of each gives away, and how many there are.
        width: of the grid of losses.
    """
    whole = DensePLDPmf(width, 0, np.ones(1), _ROUNDING, pessimistic_estimate=True)
    for told, cells in kinds:
        single = DensePLDPmf(width, *_gridded(told, width), told.certain, pessimistic_estimate=True)
        truncation = _TRUNCATION if cells > _FEW else 0.0
        whole = whole.compose(single.self_compose(cells, truncation))
    return whole


def _gridded(told: ShiftedLosses, width: float) -> tuple[int, NDArray[np.float64]]:
    """First point of the grid, and the mass at each from there on."""
    below = np.floor(told.losses / width)
    points = below.astype(np.int64)
    # Mass P m goes up and P (1 - m) down, such that Q is split in proportion to e^-loss as well.
    up = told.masses * np.expm1(below * width - told.losses) / math.expm1(-width)
    first = int(points.min())
    masses = np.zeros(int(points.max()) - first + 2)
    masses[:-1] += np.bincount(points - first, told.masses - up, len(masses) - 1)
    masses[1:] += np.bincount(points - first, up, len(masses) - 1)
    return first, masses
