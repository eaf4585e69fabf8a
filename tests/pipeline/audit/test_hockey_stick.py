"""Lower bounds from samples: sound whatever the event is, and sharp where there is something."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.audit.hockey_stick import Sight, choose_event, loss_bound
from randomizers.randomness import seeded_generator


@pytest.mark.parametrize(("hits", "others"), [(900, 100), (1000, 0), (500, 499), (7, 1)])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_a_bound_is_that_of_clopper_and_pearson(hits: int, others: int, delta: float) -> None:
    """Found anew by bisection in the binomial law."""
    trials, alarm = 1000, 1e-6

    def solve(tail: float, sign: int, at: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            seen = (
                stats.binom.sf(at - 1, trials, middle)
                if sign > 0
                else stats.binom.cdf(at, trials, middle)
            )
            low, high = (middle, high) if (seen < tail) == (sign > 0) else (low, middle)
        return low

    lower = solve(alarm / 2, 1, hits)
    upper = solve(alarm / 2, -1, others) if others < trials else 1.0
    expected = math.log((lower - delta) / upper) if lower > delta else 0.0
    found = loss_bound(hits, trials, others, trials, delta, alarm)
    assert found == pytest.approx(max(0.0, expected), rel=1e-6, abs=1e-9)


def test_nothing_follows_from_events_that_are_as_likely_or_that_never_happen() -> None:
    assert loss_bound(0, 100, 0, 100, 0.0, 1e-9) == 0.0
    assert loss_bound(100, 100, 100, 100, 0.0, 1e-9) == 0.0
    assert loss_bound(50, 100, 0, 100, 0.6, 1e-9) == 0.0


def responses(epsilon: float, value: int, trials: int, rng: np.random.Generator) -> list[Sight]:
    """Randomized responses of one epoch."""
    kept = rng.random(trials) < 1 / (1 + math.exp(-epsilon))
    return [((((value if keep else 1 - value,), 1),),) for keep in kept.tolist()]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_a_loss_is_found_up_to_what_samples_allow_and_never_more(epsilon: float) -> None:
    rng = seeded_generator(1, round(10 * epsilon))
    train = [responses(epsilon, value, 10_000, rng) for value in (1, 0)]
    fresh = [responses(epsilon, value, 10_000, rng) for value in (1, 0)]
    event = choose_event(train[0], train[1], 0.0, 1e-9)
    found = loss_bound(event.count(fresh[0]), 10_000, event.count(fresh[1]), 10_000, 0.0, 1e-9)
    assert 0.7 * epsilon < found <= epsilon


def test_bounds_are_wrong_as_seldom_as_they_say() -> None:
    """At a confidence of 80 %, that of a thousand bounds too many are wrong is no chance."""
    rng, alarm, runs, trials = seeded_generator(2), 0.2, 1_000, 200
    kept = 1 / (1 + math.exp(-1.0))
    hits = rng.binomial(trials, kept, runs).tolist()
    others = rng.binomial(trials, 1 - kept, runs).tolist()
    wrong = sum(
        loss_bound(one, trials, other, trials, 0.0, alarm) > 1.0
        for one, other in zip(hits, others, strict=True)
    )
    assert stats.binom.sf(wrong - 1, runs, alarm) > 1e-9
    # And a bound is no bound if it is that of an event of the training trials alone.
    assert (
        sum(
            loss_bound(one, trials, other, trials, 0.0, 1.9) > 1.0
            for one, other in zip(hits, others, strict=True)
        )
        > runs / 4
    )


def test_a_sum_of_many_words_is_told_from_one_more() -> None:
    """No view is there twice, no word says anything alone: a linear score has to be learnt."""
    rng = seeded_generator(3)

    def windows(more: int) -> list[Sight]:
        noise = rng.normal(0, 0.4, 2_000).round(3)
        return [((((1000 + int(1000 * (each + more)),), 1),),) for each in noise.tolist()]

    event = choose_event(windows(1), windows(0), 0.0, 1e-9)
    fresh = windows(1), windows(0)
    assert loss_bound(event.count(fresh[0]), 2_000, event.count(fresh[1]), 2_000, 0.0, 1e-9) > 1.0
