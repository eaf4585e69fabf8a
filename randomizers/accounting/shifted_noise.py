"""Privacy loss of shifted noise cells: loss distributions, composed numerically.

A user's message shifts a cell: an observer sees the noise, or the noise plus one. Messages of other
users are constants. So the observer's view consists of independent cells, some of them shifted, and
its privacy loss is the sum of their losses (`dpstream.randomizers.accounting.loss_distributions`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import CellNoise, NegativeBinomialNoise
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.search import least_integer, least_parameter

LEAST_DELTA = 1e-12
"""Minimum delta; far above the charge for the tails of the noise, for any number of cells."""
TAIL = 1e-30
"""Probability that the noise is outside the evaluated interval; counted as certain loss."""
LEAST_MASS = 1e-60
"""Probability below which an outcome is counted as certain loss."""
GRID_FINENESS = 0.025
"""Grid width divided by the root mean square of the losses; adds 1e-4 to their variance."""


@dataclass(frozen=True, slots=True)
class ShiftedCells:
    """Cells in which two neighbors differ, all with the same noise and shift.

    `shift` is the second neighbor's number of messages in a cell minus the first neighbor's.
    """

    noise: CellNoise
    shift: int
    cells: int

    def __post_init__(self) -> None:
        if self.shift == 0 or self.cells < 1:
            raise ValueError(
                f"'shift' is {self.shift} and 'cells' is {self.cells}; expected a nonzero 'shift' "
                "and a positive 'cells'"
            )


def shifted_losses(noise: CellNoise, shift: int, tail: float = TAIL) -> Losses:
    """Return the losses of P, the noise, against Q, the noise plus `shift`.

    With Poisson noise and a shift of 1, the loss of a count z is ln(lambda / z), and z = 0 reveals
    the first neighbor. With a shift of -1, the loss is ln((z + 1) / lambda).

    The shift is positive if the second neighbor has more messages than the first. A probability of
    at most `tail` at either end is not evaluated but counted in `certain`.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> told = shifted_losses(PoissonNoise(2.0), 1)
    >>> told.losses[:3].round(3).tolist(), round(told.certain, 6)  # ln 2, ln 1, ln 2/3; e^-2
    ([0.693, 0.0, -0.405], 0.135335)
    """
    low, high = noise.window(tail)
    masses, error = noise.weights(low, high)
    # The counts z for which z - shift is also possible.
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
    """Return the least delta that covers both orders of neighbors at an epsilon, rounded up.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> noise = PoissonNoise(42.7)
    >>> f"{delta_spent([ShiftedCells(noise, 1, 1), ShiftedCells(noise, -1, 1)], 1.0):.1e}"
    '9.9e-07'
    """
    return max(each.delta(epsilon) for each in _directions(parts))


def epsilon_spent(parts: Sequence[ShiftedCells], delta: float) -> float:
    """Return the least epsilon that covers both orders of neighbors at a delta, rounded up.

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
    """Return the least mean that is private enough, rounded up by a factor of at most 1 + 1e-5.

    `parts` returns the shifted cells, given the mean of their noise or another parameter whose
    larger values are safer. The result is always verified to be private. Raises `ValueError` if no
    mean up to 10^12 suffices.
    """
    check_target(epsilon, delta)
    return least_parameter(lambda mean: delta_spent(parts(mean), epsilon), delta, guess)


def check_target(epsilon: float, delta: float) -> None:
    """Raise `ValueError` unless epsilon is positive and finite, and delta is in its range."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}; expected a positive finite number")
    if not LEAST_DELTA <= delta < 1:
        raise ValueError(f"delta is {delta!r}; expected at least {LEAST_DELTA:g} and below 1")


def delta_of_tables(epsilon: float, distance: float, draws: int) -> float:
    """Return the increase of delta if noise is drawn from tables instead of its distribution.

    A mechanism at total variation distance t from an (epsilon, delta)-private one is
    (epsilon, delta + (1 + e^epsilon) t)-private. `distance` is that of a single draw, and `draws`
    is the number of draws that the guarantee covers.
    """
    return (1 + math.exp(epsilon)) * draws * distance


def grid_width(parts: Sequence[ShiftedCells]) -> float:
    """Return the grid width: `GRID_FINENESS` times the root mean square loss of a cell."""
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


_LARGEST_SHAPE = 1 << 24


def fewest_dummies(
    epsilon: float,
    delta: float,
    shifts: Callable[[NegativeBinomialNoise], Sequence[ShiftedCells]],
    poisson_mean: float,
    variance_factor: float,
) -> NegativeBinomialNoise:
    """Return the negative-binomial noise with the least mean under a bound on its variance.

    A privacy guarantee requires a certain variance, while communication costs grow with the mean.
    The two are equal for Poisson noise; clustered dummies have a variance above their mean.

    The bound is `variance_factor` times `poisson_mean`, the mean and variance of Poisson noise that
    suffices. Shapes are integers: a smaller shape means fewer dummies and a larger variance.
    `shifts` returns the shifted cells, given their noise. Raises `ValueError` if the factor is at
    most 1, or too close to 1 for any shape.
    """
    if not variance_factor > 1:
        raise ValueError(f"variance_factor is {variance_factor!r}; expected a number above 1")

    variance = variance_factor * poisson_mean

    def widest(shape: int) -> NegativeBinomialNoise:
        """Return the noise of this shape with the maximum allowed variance."""
        mean = 2 * variance / (1 + math.sqrt(1 + 4 * variance / shape))
        return NegativeBinomialNoise(float(shape), mean)

    def enough(shape: int) -> bool:
        if shape > _LARGEST_SHAPE:
            raise ValueError(f"variance_factor is {variance_factor}, too close to 1. Increase it")
        return delta_spent(shifts(widest(shape)), epsilon) <= delta

    shape = least_integer(enough, 0, step=16)
    noise_of = partial(NegativeBinomialNoise, float(shape))
    guess = widest(shape).mean
    return noise_of(least_mean(epsilon, delta, lambda mean: shifts(noise_of(mean)), guess))
