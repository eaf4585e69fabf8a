"""Cells of noise that messages shift: every number of dummies, by the definition of its law.

With one message and several, more and fewer; with cells that are shifted in different directions;
with all noise that there is, and horizons of several epochs.

What the sizes of two crowds tell of somebody who is in one of them, or in the other.

By the definition of the deletion: of n messages max(0, min(n, n + Z - shift)) are left. All pairs
of sizes that can be seen are enumerated, with crowds of many sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from scipy import stats

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import (
    Pair,
    excess,
    finding,
    least_delta,
    less_than_it_is,
    mirrored,
    shifted,
    together,
)
from dpstream.pipeline.conformance.divergences import exponential
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
from dpstream.randomizers.accounting.crowd_counts import delta_of_counts
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, delta_spent, epsilon_spent
from dpstream.randomizers.crowds import CrowdCounts
from dpstream.randomizers.crowds.calibration import calibrate

ATTACK = "crowds"
# Of the noise, in parts of which it is computed; numbers beyond are put together.
_TOTAL, _FARTHEST = 1 << 160, 60
# What is computed is the law of a table, which is nearer than that to its own.
_OF_TABLE = Fraction(1, 1 << 100)


def crowds() -> Iterator[Finding]:
    """Deltas of one epoch and of several, and the epsilon asked for."""
    yield finding(ATTACK, "the sizes of two crowds, at one epoch", _one_epoch())
    yield finding(ATTACK, "the sizes of two crowds, at up to 10 epochs", _several())
    yield finding(ATTACK, "the loss of a size, against what was asked for", _asked())


def sizes_left(decay: Fraction, shift: int, messages: int) -> dict[int, int]:
    """How likely it is that so many are left, in parts of a total that is about `_TOTAL`."""
    # P(z) is (1 - decay) / (1 + decay) decay^|z|, and its tail a geometric series.
    share = _TOTAL * (1 - decay) / (1 + decay)
    left: dict[int, int] = {}
    for noise in range(-_FARTHEST, _FARTHEST + 1):
        likely = share * decay ** abs(noise)
        if abs(noise) == _FARTHEST:
            likely /= 1 - decay
        number = max(0, min(messages, messages + noise - shift))
        left[number] = left.get(number, 0) + int(likely)
    return left


def _pair(decay: Fraction, shift: int, one: int, other: int) -> Pair:
    first, second = (sizes_left(decay, shift, each) for each in (one, other))
    return [(first.get(size, 0), second.get(size, 0)) for size in {*first, *second}]


def delta_of_two(decay: Fraction, shift: int, epsilon: float) -> Fraction:
    """Of somebody who leaves one crowd for another, over crowds of a few sizes."""
    largest = Fraction(0)
    # Far ends of the noise are seen as one number only where that is what is left of all.
    most = _FARTHEST - shift - 2
    for one, other in ((most, most), (1, most), (most, 0), (1, 0)):
        moved = [
            _pair(decay, shift, one, one - 1),
            _pair(decay, shift, other, other + 1),
        ]
        seen = list(together(moved))
        unsure = 4 * _TOTAL
        for each in (seen, mirrored(seen)):
            largest = max(largest, excess(each, epsilon, _TOTAL**2, unsure))
    return largest


def _one_epoch() -> Iterator[str]:
    for decay, shift in ((Fraction(4, 5), 6), (Fraction(9, 10), 12), (Fraction(1, 2), 3)):
        counts = CrowdCounts((decay.numerator, decay.denominator), shift, 0.1)
        stated = delta_of_counts(decay, shift)
        what = f"crowds with a decay of {float(decay):g} and a shift of {shift}"
        least = delta_of_two(decay, shift, counts.epsilon)
        yield less_than_it_is(what, stated + _OF_TABLE, least)


def _several() -> Iterator[str]:
    for epsilon, delta, epochs in ((0.4, 0.05, 1), (0.4, 0.05, 10), (1.0, 0.01, 3)):
        law = calibrate(epsilon, delta, epochs)
        once = delta_of_two(law.ratio, law.shift, epsilon)
        # What gives somebody away without doubt at any epoch.
        certain = _certain(law.ratio, law.shift)
        for least in (once, 1 - (1 - certain) ** epochs):
            yield less_than_it_is(f"crowds at {epochs} epochs", law.delta, least)


def _certain(decay: Fraction, shift: int) -> Fraction:
    """Of all messages of a crowd nothing is deleted: P(Z >= shift), by a geometric series."""
    return decay**shift / (1 + decay)


def _asked() -> Iterator[str]:
    """A size is at most 1 / decay times as likely with one user more or less, in two crowds."""
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        law = calibrate(epsilon, 1e-3, 1)
        if 1 / law.ratio**2 > exponential(epsilon, rounded_up=True):
            yield f"was asked for an epsilon of {epsilon:g} of crowds, and sizes lose more"


NOISES: Sequence[CellNoise] = (
    PoissonNoise(0.5),
    PoissonNoise(6.0),
    BinomialNoise(12, 0.3),
    NegativeBinomialNoise(1.5, 3.0),
)
SHIFTS = ((1,), (3,), (-2,), (1, -1), (2, 1))
EPSILONS = (0.5, 2.0)
DELTAS = (0.3, 0.02)
# Of a horizon that is too long to enumerate.
_LONG = 1_000
# As a share: what floating point may get wrong in the law of a sum.
_CERTAIN = 1e-6


def shifted_cells() -> Iterator[Finding]:
    """Deltas and epsilons of shifted cells, and noise for horizons."""
    for noise in NOISES:
        yield finding("shifted noise", f"{noise}, up to 3 messages more or fewer", _cells(noise))
    yield finding("horizons of counts", "every stream of up to 3 epochs", _horizons())
    yield finding("horizons of counts", f"the sum of {_LONG:,} epochs", _long_horizon())


def delta_of_cells(noise: CellNoise, shifts: Sequence[int], epsilon: float) -> Fraction:
    """The least delta of cells with these shifts, whichever world is the true one."""
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
    """Wherever streams differ, either of them may be the one with the message."""
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
    """Of all that is seen only the sum is looked at, which tells less, and little less."""
    epsilon, delta = 1.0, 1e-9
    mean = poisson_for_epochs(epsilon, delta, _LONG).mean
    whole = stats.poisson(_LONG * mean)
    # The sets that tell most are those of few messages.
    middle, deviation = _LONG * mean, math.sqrt(_LONG * mean)
    for reach in range(1, 10):
        most = math.floor(middle - reach * deviation)
        likely, other = float(whole.cdf(most)), float(whole.cdf(most - _LONG))
        least = likely * (1 - _CERTAIN) - math.exp(epsilon) * other * (1 + _CERTAIN)
        if least > delta:
            yield (
                f"states a delta of {delta:g} for {_LONG:,} epochs with {mean:.6g} dummies each, "
                f"and it is at least {least:.4g}"
            )
