"""Test lower bounds from samples: they are sound, and close to the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpstream.pipeline.audit.hockey_stick import (
    Observation,
    Observations,
    choose_guess,
    loss_bound,
    share_of_guesses_for,
)
from dpstream.randomizers.randomness import seeded_generator


@pytest.mark.parametrize(("right", "wrong"), [(900, 100), (1000, 0), (500, 499), (7, 1)])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.05])
def test_loss_bound_equals_the_clopper_pearson_bound(right: int, wrong: int, delta: float) -> None:
    """The bound is recomputed by bisection of the binomial distribution without excused trials."""
    trials, alarm = 2000, 1e-6
    excused, share = 0, alarm
    if delta:
        share = alarm / 2
        excused = next(
            many for many in range(trials) if stats.binom.sf(many, trials, delta) <= share
        )
    left = right - excused
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        seen = stats.binom.sf(left - 1, left + wrong, middle)
        low, high = (middle, high) if seen < share else (low, middle)
    expected = math.log(low / (1 - low)) if left > 0 and low > 0 else 0.0
    found = loss_bound(right, wrong, trials, delta, alarm)
    assert found == pytest.approx(max(0.0, expected), rel=1e-6, abs=1e-9)


def responses(
    epsilon: float, value: int, trials: int, rng: np.random.Generator
) -> list[Observation]:
    kept = rng.random(trials) < 1 / (1 + math.exp(-epsilon))
    return [((((value if keep else 1 - value,), 1),),) for keep in kept.tolist()]


def of_responses(epsilon: float, value: int, trials: int, rng: np.random.Generator) -> Observations:
    return Observations.of(responses(epsilon, value, trials, rng))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_loss_bound_is_close_to_but_never_above_the_true_loss(epsilon: float) -> None:
    rng = seeded_generator(1, round(10 * epsilon))
    one, other, *fresh = (of_responses(epsilon, value, 10_000, rng) for value in (1, 0, 1, 0))
    guess = choose_guess(one, other, 0.0, 1e-9)
    found = loss_bound(*guess.count(fresh[0], fresh[1]), 20_000, 0.0, 1e-9)
    assert 0.8 * epsilon < found <= epsilon


def test_loss_bounds_are_wrong_no_more_often_than_stated() -> None:
    """At 80 % confidence, the number of wrong bounds among a thousand has a limit."""
    rng, alarm, runs, trials = seeded_generator(2), 0.2, 1_000, 400
    kept = 1 / (1 + math.exp(-1.0))
    for delta in (0.0, 0.02):
        # In each trial a coin chooses the neighbor, which delta reveals in some trials.
        right = rng.binomial(trials, delta + (1 - delta) * kept, runs).tolist()
        wrong = sum(loss_bound(each, trials - each, trials, delta, alarm) > 1.0 for each in right)
        assert stats.binom.sf(wrong - 1, runs, alarm) > 1e-9
        # The point estimate exceeds the true loss too often to be a bound.
        assert sum(loss_bound(each, trials - each, trials, 0.0, 1.0) > 1.0 for each in right) > 400


def test_sums_that_differ_by_one_are_distinguished() -> None:
    """All views are unique and no single message distinguishes, so a linear score is needed."""
    rng = seeded_generator(3)

    def windows(more: int) -> Observations:
        noise = rng.normal(0, 0.4, 2_000).round(3)
        return Observations.of(
            [((((1000 + int(1000 * (each + more)),), 1),),) for each in noise.tolist()]
        )

    guess = choose_guess(windows(1), windows(0), 0.0, 1e-9)
    assert loss_bound(*guess.count(windows(1), windows(0)), 4_000, 0.0, 1e-9) > 1.0


def test_audit_detects_violations_with_the_stated_probability() -> None:
    rng, alarm, trials, power = seeded_generator(6), 1e-9, 20_000, 0.9
    for epsilon, delta, factor in ((1.0, 0.0, 1.3), (0.5, 0.01, 2.0)):
        share = share_of_guesses_for(epsilon, delta, factor, trials, alarm, power)
        assert share is not None
        guesses = rng.binomial(trials, share, 400)
        right = rng.binomial(guesses, 1 / (1 + math.exp(-factor * epsilon)))
        seen = sum(
            loss_bound(each, many - each, trials, delta, alarm) > epsilon
            for each, many in zip(right.tolist(), guesses.tolist(), strict=True)
        )
        assert stats.binom.cdf(seen, 400, power) > 1e-9
        # The fraction is necessary: half of it rarely detects the loss.
        right = rng.binomial(guesses // 2, 1 / (1 + math.exp(-factor * epsilon)))
        seen = sum(
            loss_bound(each, many - each, trials, delta, alarm) > epsilon
            for each, many in zip(right.tolist(), (guesses // 2).tolist(), strict=True)
        )
        assert seen < 200
    assert share_of_guesses_for(12.0, 0.0, 1.3, trials, alarm, power) is None
    assert share_of_guesses_for(0.0, 0.0, 1.3, trials, alarm, power) is None
