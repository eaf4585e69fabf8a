"""Balls into bins, server side: unbiased, and as accurate as predicted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from aggregators.attendance import Attendance
from aggregators.balls_into_bins import BallsIntoBinsAggregator, mean_variance
from aggregators.estimate import NORMAL_95
from aggregators.item_estimates import ItemEstimates
from randomizers.balls_into_bins import (
    BallsIntoBins,
    BallsIntoBinsLaw,
    BallsIntoBinsParameters,
)
from randomizers.balls_into_bins.calibration import calibrate
from randomizers.counted_words import written_out
from randomizers.item_domains import Bits
from randomizers.randomness import seeded_generator
from tests.support.thinned import thinned

FALSE_ALARM = 1e-10


def law_of(domain: int, buckets: int, items: int, minimum: int) -> BallsIntoBinsLaw:
    labels = tuple(map(str, range(domain)))
    return calibrate(BallsIntoBinsParameters(4.0, 0.1, labels, items, buckets), 1, minimum)


def estimated(
    law: BallsIntoBinsLaw,
    values: NDArray[np.int64],
    seed: int,
    present: NDArray[np.bool_] | None = None,
) -> ItemEstimates:
    devices, rng = BallsIntoBins(law), seeded_generator(seed)
    devices.enrol(len(values), rng)
    aggregator, attendance = BallsIntoBinsAggregator(law), Attendance.empty(1)
    aggregator.add(1, written_out(devices.report(1, values, present, rng)), None)
    attendance.set(1, len(values) if present is None else int(present.sum()), len(values))
    found = aggregator.estimate(1, attendance)
    assert isinstance(found, ItemEstimates)
    return found


def sets(users: int, domain: int, items: int) -> NDArray[np.int64]:
    """Some items held by many and some by few; a fifth of the users hold fewer than they may."""
    rng = np.random.default_rng(domain)
    weights = 1 / np.arange(1, domain + 1)
    held = rng.choice(domain, (users, items), p=weights / weights.sum()) + 1
    held[: users // 5, 0] = 0
    return held


def truth_of(values: NDArray[np.int64], domain: int) -> NDArray[np.int64]:
    return np.array([(values == item).any(axis=1).sum() for item in range(1, domain + 1)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("domain", "buckets", "items"), thinned([(25, 7, 3), (25, 5, 1), (20, 3, 1), (9, 11, 2)])
)
def test_items_are_unbiased_and_err_as_predicted_each(
    domain: int, buckets: int, items: int
) -> None:
    users, runs = 300, 1_500
    law, values = law_of(domain, buckets, items, users), sets(users, domain, items)
    truth = truth_of(values, domain)
    errors = np.stack([estimated(law, values, seed).values - truth for seed in range(runs)])
    overlap = law.hashes.overlap
    collisions = (truth.sum() - truth) * overlap / (1 - overlap)
    predicted = mean_variance(law, users, messages=0) + collisions
    assert mean_variance(law, users, truth.sum()) == pytest.approx(predicted.mean())
    for shift in (0.0, 0.35, -0.35):
        means = (errors / np.sqrt(predicted) + shift).mean(axis=0) * math.sqrt(runs)
        assert ((2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM) == (shift == 0.0)).all()
    for scale in (1.0, 0.75, 1.35):
        squares = np.square(scale * errors).sum(axis=0) / predicted
        fits = 2 * np.minimum(stats.chi2.cdf(squares, runs), stats.chi2.sf(squares, runs))
        assert ((fits > FALSE_ALARM) == (scale == 1.0)).all(), scale
    published = estimated(law, values, 1)
    assert published.standard_deviation**2 == pytest.approx(predicted.mean(), rel=0.1)
    assert published.half_width == NORMAL_95 * published.standard_deviation


@pytest.mark.slow
def test_a_hundred_thousand_users_with_fewer_than_five_messages_each() -> None:
    """The reference has 4.7 messages and a standard deviation of 7.4."""
    users, domain = 100_000, 10_000
    parameters = BallsIntoBinsParameters(
        1.0, 1e-6, tuple(map(str, range(domain))), messages_per_user=4.7
    )
    law, values = calibrate(parameters, 1, users), sets(users, domain, 1)
    found, truth = estimated(law, values, 1), truth_of(values, domain)
    assert found.reports / users < 4.9
    error = math.sqrt(np.square(found.values - truth).mean())
    assert error < 7.8
    assert found.standard_deviation < 7.5
    # Were all items on one line they would have their collisions in common, and err together.
    assert error == pytest.approx(found.standard_deviation, rel=0.06)
    covered = (np.abs(found.values - truth) < found.half_width).mean()
    assert covered == pytest.approx(0.95, abs=0.015)


@pytest.mark.slow
def test_estimates_of_those_present_are_scaled_to_the_population() -> None:
    users, runs = 2_000, 400
    law, values = law_of(25, 5, 1, 1_000), sets(users, 25, 1)
    truth, errors, deviations = truth_of(values, 25), [], []
    for seed in range(runs):
        present = np.random.default_rng(seed).random(users) < 0.6
        found = estimated(law, values, seed, present)
        errors.append(found.values - truth)
        deviations.append(found.standard_deviation)
    standardized = np.stack(errors) / np.array(deviations)[:, None]
    for shift in (0.0, 0.7, -0.7):
        means = (standardized + shift).mean(axis=0) * math.sqrt(runs)
        assert ((2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM) == (shift == 0.0)).all()
    assert np.square(standardized).mean() == pytest.approx(1, abs=0.05)


def test_a_window_without_messages_is_an_estimate_and_a_withheld_one_is_none() -> None:
    aggregator = BallsIntoBinsAggregator(law_of(25, 5, 1, 100))
    before = aggregator.to_bytes()
    assert aggregator.estimate(1, Attendance.constant(1, 99)) is None
    found = aggregator.estimate(1, Attendance.constant(1, 100))
    assert found is not None
    assert found.reports == 0
    assert (found.values < 0).all()
    assert aggregator.to_bytes() == before == b""


def test_words_that_cannot_be_are_refused_and_nothing_is_counted() -> None:
    aggregator = BallsIntoBinsAggregator(law_of(25, 5, 1, 100))
    for words, complaint in (
        (np.array([[3], [30]], np.uint8), "word 30 at epoch 1, must be below 30"),
        (np.array([[3]], np.uint16), "must be uint8"),
        (np.array([3], np.uint8), "must be uint8 of shape"),
    ):
        with pytest.raises(ValueError, match=complaint):
            aggregator.add(1, words, None)
    with pytest.raises(ValueError, match="epoch 2, the horizon has 1"):
        aggregator.add(2, np.array([[3]], np.uint8), None)
    assert aggregator.to_bytes() == b""


def test_states_of_other_laws_are_refused() -> None:
    law, other = law_of(25, 5, 1, 100), law_of(4, 5, 1, 100)
    aggregator = BallsIntoBinsAggregator(law)
    aggregator.add(1, np.array([[29], [29], [4]], np.uint8), None)
    data = aggregator.to_bytes()
    assert BallsIntoBinsAggregator.from_bytes(law, data).to_bytes() == data
    with pytest.raises(ValueError, match="word 29 at epoch 1, must be below 5"):
        BallsIntoBinsAggregator.from_bytes(other, data)
    with pytest.raises(ValueError, match="epoch 1 after those of epoch 1"):
        BallsIntoBinsAggregator.from_bytes(law, data + data)
    with pytest.raises(ValueError, match="end before byte"):
        BallsIntoBinsAggregator.from_bytes(law, data[:-1])
    with pytest.raises(ValueError, match="two different laws"):
        aggregator.merge(BallsIntoBinsAggregator(other))


def test_the_word_of_a_large_domain_is_as_wide_as_it_needs_to_be() -> None:
    for bits, buckets, dtype in (
        (4, 17, "u1"),
        (8, 17, "u2"),
        (16, 257, "u4"),
        (24, 100_003, "u8"),
    ):
        parameters = BallsIntoBinsParameters(4.0, 0.1, Bits(bits), buckets=buckets)
        law = calibrate(parameters, 1, 100)
        assert law.word_dtype == np.dtype(f"<{dtype}")
