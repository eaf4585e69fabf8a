"""Recompute what the sizes of two crowds reveal about a user who is in one of them.

By definition, random deletion leaves max(0, min(n, n + Z - shift)) of n messages. All visible pairs
of sizes are enumerated, for crowds of several sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import (
    Pair,
    excess,
    finding,
    less_than_it_is,
    mirrored,
    together,
)
from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.crowds import CrowdCounts
from dpstream.randomizers.crowds.calibration import calibrate, delta_of_counts

ATTACK = "crowds"


# Total weight of the noise, and the distance from 0 at which the tails of the noise are merged.
_TOTAL, _FARTHEST = 1 << 160, 60


# The stated delta is for a noise table, whose distance from its distribution is below this.
_OF_TABLE = Fraction(1, 1 << 100)


def crowds() -> Iterator[Finding]:
    yield finding(ATTACK, "the sizes of two crowds, at one epoch", _one_epoch())
    yield finding(ATTACK, "the sizes of two crowds, at up to 10 epochs", _several())
    yield finding(ATTACK, "the loss from a crowd's size, compared with the target", _asked())


def sizes_left(decay: Fraction, shift: int, messages: int) -> dict[int, int]:
    """Return weights for the possible numbers of remaining messages, about `_TOTAL` in sum."""
    # P(z) = (1 - decay) / (1 + decay) decay^|z|, so the tail is a geometric series.
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
    """Return the largest delta over several sizes for a user who moves between two crowds."""
    largest = Fraction(0)
    # Merging a tail of the noise is exact only if the whole tail leaves the same number of
    # messages.
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
        # The probability of certain disclosure at an epoch.
        certain = _certain(law.ratio, law.shift)
        for least in (once, 1 - (1 - certain) ** epochs):
            yield less_than_it_is(f"crowds at {epochs} epochs", law.delta, least)


def _certain(decay: Fraction, shift: int) -> Fraction:
    """Return the probability that nothing is deleted: P(Z >= shift), by a geometric series."""
    return decay**shift / (1 + decay)


def _asked() -> Iterator[str]:
    """Check the loss from sizes: at most a factor of 1 / decay in each of a user's two crowds."""
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        law = calibrate(epsilon, 1e-3, 1)
        if 1 / law.ratio**2 > exponential(epsilon, rounded_up=True):
            yield f"calibrates crowds to epsilon {epsilon:g}, but their sizes reveal more"
