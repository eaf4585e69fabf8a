"""Recompute losses for noisy cells that messages shift, by enumerating all numbers of dummies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from scipy import stats

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import (
    finding,
    least_delta,
    less_than_it_is,
    shifted,
)
from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.continual_counts import (
    epsilon_for_epochs,
    negative_binomial_for_epochs,
    poisson_for_epochs,
)
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, delta_spent, epsilon_spent

NOISES: Sequence[CellNoise] = (
    PoissonNoise(0.5),
    PoissonNoise(6.0),
    BinomialNoise(12, 0.3),
    NegativeBinomialNoise(1.5, 3.0),
)
SHIFTS = ((1,), (3,), (-2,), (1, -1), (2, 1))
EPSILONS = (0.5, 2.0)
DELTAS = (0.3, 0.02)
# Number of epochs in a horizon that is too long to enumerate.
_LONG = 1_000
# Relative floating-point error allowed in the distribution of a sum.
_CERTAIN = 1e-6


def shifted_cells() -> Iterator[Finding]:
    for noise in NOISES:
        yield finding("shifted noise", f"{noise}, up to 3 messages more or fewer", _cells(noise))
    yield finding("horizons of counts", "every stream of up to 3 epochs", _horizons())
    yield finding("horizons of counts", f"the sum of {_LONG:,} epochs", _long_horizon())


def delta_of_cells(noise: CellNoise, shifts: Sequence[int], epsilon: float) -> Fraction:
    """Return the least delta for cells with these shifts, in both orders of the two worlds."""
    return least_delta([shifted(noise, shift) for shift in shifts], epsilon)


def _cells(noise: CellNoise) -> Iterator[str]:
    for shifts in SHIFTS:
        parts = [ShiftedCells(noise, shift, 1) for shift in shifts]
        what = f"{noise} shifted by {' and '.join(map(str, shifts))}"
        stated = [(epsilon, delta_spent(parts, epsilon)) for epsilon in EPSILONS]
        stated += [(epsilon_spent(parts, delta), delta) for delta in DELTAS]
        for epsilon, delta in stated:
            if math.isfinite(epsilon):
                least = delta_of_cells(noise, shifts, epsilon)
                yield less_than_it_is(f"{what} and epsilon {epsilon:.4g}", delta, least)


def _horizons() -> Iterator[str]:
    """Check horizons in which, at every epoch, one or the other of two streams has a message."""
    for epsilon, delta, epochs in ((1.0, 0.1, 1), (1.5, 0.1, 2), (4.0, 0.2, 3)):
        noises: list[CellNoise] = [poisson_for_epochs(epsilon, delta, epochs)]
        if epochs < 3:
            noises.append(negative_binomial_for_epochs(epsilon, delta, epochs))
        for noise in noises:
            stated = epsilon_for_epochs(noise, delta, epochs)
            for ups in range(epochs // 2, epochs + 1):
                shifts = (*[1] * ups, *[-1] * (epochs - ups))
                for claimed in (epsilon, stated):
                    least = delta_of_cells(noise, shifts, claimed)
                    what = f"{noise} in {epochs} epochs, and epsilon {claimed:.4g}"
                    yield less_than_it_is(what, delta, least)


def _long_horizon() -> Iterator[str]:
    """Check a long horizon by the sum of its epochs, which reveals slightly less than they do."""
    epsilon, delta = 1.0, 1e-9
    mean = poisson_for_epochs(epsilon, delta, _LONG).mean
    whole = stats.poisson(_LONG * mean)
    # Sets of observations with few messages reveal the most.
    middle, deviation = _LONG * mean, math.sqrt(_LONG * mean)
    for reach in range(1, 10):
        most = math.floor(middle - reach * deviation)
        likely, other = float(whole.cdf(most)), float(whole.cdf(most - _LONG))
        least = likely * (1 - _CERTAIN) - math.exp(epsilon) * other * (1 + _CERTAIN)
        if least > delta:
            yield (
                f"states a delta of {delta:g} for {_LONG:,} epochs with {mean:.6g} dummies "
                f"each; the true delta is at least {least:.4g}"
            )
