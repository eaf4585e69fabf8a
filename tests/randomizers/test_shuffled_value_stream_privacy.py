"""Test the loss of noisy sums between two streams, computed from the noise table.

For every stream, and every reaction to published values, the squares of a device's messages sum to
at most its squared-norm budget. So the contributions of two streams to the sums differ by at most
twice the root of the budget. The loss at that distance is computed exactly, in integers, for one
epoch, and by summing the products of all outcomes for several epochs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    ZERO,
    ShuffledValueStream,
    ShuffledValueStreamLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate,
    law_with,
)

KERNEL = Kernel(1.0, 0.25)
"""Change kernel whose first messages are multiples of 1/256, so that nothing is rounded."""

# Tables for larger noise take long to compute.
CASES = [
    (8.0, 1e-2),
    pytest.param(4.0, 1e-3, marks=pytest.mark.verify),
    pytest.param(1.0, 1e-3, marks=pytest.mark.verify),
]

REACH = 9
"""Standard deviations; the tail beyond has probability below 2^-61 and counts as certain loss."""
BEYOND = Fraction(1, 1 << 61)


@cache
def law_of(epochs: int, epsilon: float, delta: float) -> ShuffledValueStreamLaw:
    return law_with(KERNEL, ShuffledCountsParameters(epsilon, delta, 2, dummies="shuffle"), epochs)


def farthest(law: ShuffledValueStreamLaw) -> int:
    """Return the maximum difference of two streams' messages at the only epoch that differs."""
    return math.isqrt(4 * law.squared_norm_budget)


@cache
def weights(noise: NormalNoise) -> tuple[int, ...]:
    most = REACH * noise.deviation
    above = [noise.bound(number) for number in range(most + 1)]
    assert (1 << 128) - above[most] < 2**127 * BEYOND
    # The weights are symmetric, and so is the table except for its last entries.
    assert [noise.bound(-1), noise.bound(-3)] == [2**128 - above[0], 2**128 - above[2]]
    right = np.diff(np.array(above, object)).tolist()
    return (*right[::-1], 2 * above[0] - 2**128, *right)


def exact_delta(noise: NormalNoise, shift: int, factor: Fraction) -> Fraction:
    """Return the largest P(outcomes) - factor Q(outcomes) of one sum, where Q is P shifted."""
    held = weights(noise)
    excess = (
        factor.denominator * of_one - factor.numerator * of_other
        for of_one, of_other in zip([*held, *[0] * shift], [*[0] * shift, *held], strict=True)
    )
    total = sum(more for more in excess if more > 0)
    return Fraction(total, factor.denominator << 128) + BEYOND


class Sums:
    """Distributions P and Q of a noisy sum, with their deltas for any factor."""

    def __init__(self, noise: NormalNoise, shift: int) -> None:
        held = np.array([weight / 2**128 for weight in weights(noise)])
        self.one = np.concatenate([held, np.zeros(shift)])
        self.other = np.concatenate([np.zeros(shift), held])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(self.other > 0, self.one / self.other, np.inf)
        order = np.argsort(-ratios, kind="stable")
        self._falling = -ratios[order]
        self._one = np.concatenate([[0.0], np.cumsum(self.one[order])])
        self._other = np.concatenate([[0.0], np.cumsum(self.other[order])])

    def delta(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        many = np.searchsorted(self._falling, -factors, side="left")
        with np.errstate(invalid="ignore"):
            found = self._one[many] - np.where(many > 0, factors * self._other[many], 0.0)
        return np.asarray(found, np.float64)

    def likely(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        kept = self.one > 1e-11 * self.one.max()
        return self.one[kept], self.other[kept], float(self.one[~kept].sum())


def delta_of(noise: NormalNoise, shifts: tuple[int, ...], epsilon: float) -> float:
    """Return delta over all outcomes of the sums, one per shift (at most three)."""
    *earlier, last = (Sums(noise, abs(shift)) for shift in shifts)
    one, other, told = np.ones(1), np.ones(1), len(shifts) * float(BEYOND)
    for sums in earlier[1:]:
        one, other, unlikely = sums.likely()
        told += unlikely
    firsts, others, unlikely = earlier[0].likely() if earlier else (np.ones(1), np.ones(1), 0.0)
    for of_one, of_other in zip(firsts, others, strict=True):
        factors = math.exp(epsilon) * of_other / of_one * other / one
        told += float((of_one * one * last.delta(factors)).sum())
    return told + unlikely


def words(law: ShuffledValueStreamLaw, values: NDArray[np.int8]) -> NDArray[np.int64]:
    devices, rng = ShuffledValueStream(law), seeded_generator(1)
    devices.enroll(values.shape[1], rng)
    return np.stack(
        [
            devices.report(epoch, now, None, rng)[:, 0].astype(np.int64) - ZERO
            for epoch, now in enumerate(values, start=1)
        ]
    )


def differences(law: ShuffledValueStreamLaw, epochs: int) -> set[tuple[int, ...]]:
    """Return the possible absolute differences of two streams' messages over all epochs."""
    streams = np.array(list(product((0, 1), repeat=epochs)), np.int8)
    sent = words(law, streams.T).T
    found = {tuple(np.abs(one - other).tolist()) for one, other in combinations(sent, 2)}
    for each in found:
        assert sum(shift**2 for shift in each) <= 4 * law.squared_norm_budget
    return found


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_delta_at_the_largest_distance_is_at_most_the_stated_delta(
    epsilon: float, delta: float
) -> None:
    law = law_of(2, epsilon, delta)
    factor = exponential(epsilon, rounded_up=False)
    assert exact_delta(law.noise, farthest(law), factor) <= Fraction(delta)
    assert exact_delta(law.noise, farthest(law) // 2, factor) < Fraction(delta) / 2
    assert exact_delta(law.noise, farthest(law) * 102 // 100, factor) > Fraction(delta)
    summed = float(Sums(law.noise, farthest(law)).delta(np.exp([epsilon]))[0])
    assert summed == pytest.approx(float(exact_delta(law.noise, farthest(law), factor)), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_no_streams_over_two_epochs_exceed_the_stated_loss(epsilon: float, delta: float) -> None:
    law = law_of(2, epsilon, delta)
    lost = [delta_of(law.noise, shifts, epsilon) for shifts in differences(law, 2)]
    assert len(lost) == 4
    assert max(lost) <= delta
    assert max(lost) > delta / 1000, "some pairs of streams have a loss"


@pytest.mark.verify
def test_no_streams_over_three_epochs_exceed_the_stated_loss() -> None:
    law = law_of(3, 8.0, 1e-2)
    lost = [delta_of(law.noise, shifts, 8.0) for shifts in differences(law, 3)]
    assert len(lost) > 12
    assert max(lost) <= 1e-2


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_adaptive_streams_do_not_increase_the_loss(epsilon: float, delta: float) -> None:
    """The first sum determines the distance of the second sums, within the remaining budgets.

    However the squared-norm budgets are divided, two epochs lose as much as one epoch that spends
    the whole budgets.
    """
    law = law_of(2, epsilon, delta)
    far, found = farthest(law), []
    for first in [0, far // 5, far // 2, round(far * math.sqrt(0.5)), 4 * far // 5, far]:
        of_one, of_other, unlikely = Sums(law.noise, first).likely()
        factors = math.exp(epsilon) * of_other / of_one
        left = math.isqrt(4 * law.squared_norm_budget - first**2)
        chosen = np.max(
            [Sums(law.noise, part).delta(factors) for part in (left, left // 2, left // 7, 0)],
            axis=0,
        )
        found.append(float((of_one * chosen).sum()) + unlikely)
    assert max(found) <= delta
    assert min(found) > 0.95 * delta


def test_fastest_spending_stream_is_capped_by_the_norm_budget() -> None:
    law = calibrate(ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle"), 170, 100)
    rng, devices, count = seeded_generator(2), ShuffledValueStream(law), 300
    devices.enroll(count, rng)
    spent, published = np.zeros(count, np.int64), 0
    for epoch in range(1, law.last_epoch + 1):
        state: dict[str, NDArray[Any]] = devices.state_arrays()
        before, left = state["value"] & 1, law.decay * state["followed"]
        boost = law.boost * (state["changes"] < law.max_changes)
        pulls = [np.abs(now - 0.5 + left + boost * (now - before.astype(float))) for now in (0, 1)]
        values = (pulls[1] > pulls[0]).astype(np.int8)
        values[100:200] = (np.arange(100) * published > epoch) ^ (np.arange(100) % 2)
        values[200:] = rng.integers(0, 2, 100)
        present = np.ones(count, np.bool_) if epoch % 5 else rng.random(count) < 0.5
        words_ = devices.report(epoch, values, present, rng)[:, 0].astype(np.int64) - ZERO
        spent[present] += words_**2
        published += int(words_.sum()) + law.noise.draw(rng)
        assert (spent <= law.squared_norm_budget).all()
        np.testing.assert_array_equal(
            devices.state_arrays()["left"], law.squared_norm_budget - spent
        )
    assert spent.max() > 0.9 * law.squared_norm_budget, "some devices spend almost the whole budget"


def test_noise_shared_by_two_epochs_is_detected() -> None:
    law = law_of(2, 4.0, 1e-3)
    shifts = max(differences(law, 2))
    assert shifts[0] != shifts[1]
    shared = replace(law, deviation=1).noise
    assert delta_of(shared, (abs(shifts[0] - shifts[1]),), 4.0) > 0.99
