"""Estimates of items from sampled responses: reference numbers, exact moments, hyperplanes."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from dpstream.aggregators.epoch_tables import MOST_RESUMED
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.random_walk import random_walk
from dpstream.aggregators.sampled_items import (
    ResumableItemsAggregator,
    SampledItemsAggregator,
    SmoothedItemsAggregator,
    item_variances,
    sampled_items,
)
from dpstream.pipeline.conformance.laws.sampled_response import sets_of
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import calibrate, unit_variance


def law_of(
    epsilon: float, items: int, last_epoch: int = 4, *, complete: bool = True
) -> SampledResponseLaw:
    domain = tuple(map(str, range(items)))
    return calibrate(
        SampledResponseParameters(epsilon, 1, domain=domain, complete=complete), last_epoch
    )


def estimate_of(law: SampledResponseLaw, population: int, answers: list[int]) -> ItemEstimates:
    aggregator = SampledItemsAggregator(law)
    aggregator.add(1, np.array(answers, law.message_format.dtype)[:, None], None)
    estimate = aggregator.estimate(1, Participation.constant(law.last_epoch, population))
    assert isinstance(estimate, ItemEstimates)
    return estimate


def test_estimates_and_errors_match_reference() -> None:
    estimate = estimate_of(law_of(2.0, 3), 1_000, [0] * 60 + [1] * 30 + [2] * 10)
    assert estimate.values.tolist() == pytest.approx([725.2141, 284.3482, -9.5623], abs=5e-5)
    own, other = map(float, law_of(2.0, 3).probabilities)
    found = item_variances(np.array([0.6, 0.3, 0.1]), 100, 1_000, own, other)
    # The reference omits the factor n / (n - 1) of the variance between users.
    flips = item_variances(np.array([0.6, 0.3, 0.1]), 1_000, 1_000, own, other)
    reference = np.sqrt(flips + (found - flips) * 99 / 100)
    assert reference.tolist() == pytest.approx([70.5955, 65.8152, 45.3336], abs=5e-5)
    assert estimate.standard_error == math.sqrt(found.max())
    assert estimate.half_width == pytest.approx(1.959964 * estimate.standard_error)


@pytest.mark.parametrize("complete", [False, True])
def test_mean_and_stated_variance_are_exact(complete: bool) -> None:
    """Enumerate all samples of users and all answers of a job with subsets of two values."""
    values, received = [1, 2, 2, 1, 2], 3
    law = law_of(0.5, 4 if complete else 3, complete=complete)
    sets, (own, other) = sets_of(law.sets), map(float, law.probabilities)
    points, population = law.sets.points, len(values)
    inside = np.array([[y in x for x in sets] for y in range(points)])
    likely = np.where(inside.T, own / law.sets.block, (1 - own) / law.sets.outside)
    mean = np.zeros(law.items)
    second, stated = mean.copy(), mean.copy()
    samples = list(combinations(values, received))
    for answers in product(range(points), repeat=received):
        shares = inside[list(answers), -law.items :].mean(axis=0)
        found = estimate_of(law, population, list(answers)).values
        # Unclipped shares: the stated variance is then exact.
        having = (shares - other) / (own - other)
        noise = (having * own * (1 - own) + (1 - having) * other * (1 - other)) / population
        spread = (1 / received - 1 / population) * received / (received - 1) * shares * (1 - shares)
        unclipped = population**2 * (spread + noise) / (own - other) ** 2
        for sample in samples:
            probability = math.prod(
                likely[value - complete, answer]
                for value, answer in zip(sample, answers, strict=True)
            ) / len(samples)
            mean += probability * found
            second += probability * found**2
            stated += probability * unclipped
    held = np.array([values.count(item) for item in range(1, law.items + 1)])
    assert mean.tolist() == pytest.approx(held.tolist(), abs=1e-9)
    variance = second - mean**2
    assert stated.tolist() == pytest.approx(variance.tolist())
    share = held / population
    noise = (share * own * (1 - own) + (1 - share) * other * (1 - other)) / (own - other) ** 2
    sampling = (population - received) / (population - 1) * share * (1 - share)
    assert variance.tolist() == pytest.approx(
        (population**2 * (noise + sampling) / received).tolist()
    )


@pytest.mark.parametrize(("epsilon", "items"), [(1.0, 5), (1.0, 60), (4.0, 60)])
def test_measured_errors_match_the_stated_and_the_predicted_errors(
    epsilon: float, items: int
) -> None:
    users, horizon, seeds = 6_000, 6, 12
    law = law_of(epsilon, items, horizon, complete=False)
    values = seeded_generator(1).integers(1, items + 1, users)
    held = np.bincount(values, minlength=items + 1)[1:]
    squares, stated, covered = [], [], []
    for seed in range(seeds):
        rng = seeded_generator(seed, 2)
        devices, aggregator = SampledResponse(law), SampledItemsAggregator(law)
        devices.enroll(users, rng)
        for epoch in range(1, horizon + 1):
            aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
            found = aggregator.estimate(epoch, Participation.constant(horizon, users))
            assert isinstance(found, ItemEstimates)
            errors = found.values - held
            squares.append(np.square(errors).mean())
            stated.append(found.standard_error)
            covered.append((np.abs(errors) < found.half_width).mean())
    measured = math.sqrt(np.mean(squares))
    predicted = math.sqrt(users * unit_variance(law, 1 / items, users))
    tolerance = 5 / math.sqrt(2 * len(squares) * items)
    assert measured == pytest.approx(predicted, rel=tolerance + 0.02)
    # The worst of all items has a somewhat larger error than the others.
    assert 0.98 < np.mean(stated) / predicted < 1.35
    assert 0.93 < np.mean(covered) < 0.995


def test_only_top_items_of_a_large_domain_are_published() -> None:
    law = law_of(4.0, 40_000, complete=False)
    rng, users = seeded_generator(4), 20_000
    devices, aggregator = SampledResponse(law), sampled_items(law)
    devices.enroll(users, rng)
    values = np.where(np.arange(users) < 15_000, 12_345, 0)
    aggregator.add(1, devices.report(1, values, None, rng), None)
    found = aggregator.estimate(1, Participation.constant(4, users))
    assert isinstance(found, HeavyHitters)
    assert found.items[0] == 12_345
    assert abs(found.values[0] - 15_000) < 5 * found.standard_error
    assert not isinstance(aggregator, ResumableItemsAggregator)
    assert aggregator.cells > MOST_RESUMED


@pytest.mark.parametrize("state", [{"epoch": 1, "counts": [1]}, {"epoch": 1, "counts": [1, -1, 2]}])
def test_invalid_saved_state_is_rejected(state: dict[str, object]) -> None:
    aggregator = sampled_items(law_of(1.0, 2))
    assert isinstance(aggregator, ResumableItemsAggregator)
    with pytest.raises(ValueError, match="expected 3 nonnegative integers"):
        aggregator.resume(state, Participation.constant(4, 5))


def test_each_item_of_a_small_domain_is_smoothed_with_its_own_noise() -> None:
    users, horizon = 6_000, 12
    law = law_of(2.0, 3, horizon)
    aggregator = sampled_items(law)
    assert isinstance(aggregator, SmoothedItemsAggregator)
    rng = seeded_generator(5)
    devices = SampledResponse(law)
    devices.enroll(users, rng)
    values = np.repeat([1, 2, 3], [4_000, 1_800, 200])
    for epoch in range(1, horizon + 1):
        aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
    participation = Participation.constant(horizon, users)
    smoothed = aggregator.smoothed(horizon, participation)
    published = aggregator.estimate(3, participation)
    assert isinstance(published, ItemEstimates)
    assert smoothed.values[2].tolist() == published.values.tolist()
    assert smoothed.standard_errors[2] == published.standard_error
    assert smoothed.shrunk is not None
    # The noise of an epoch of each item follows from the variance that planning states.
    for item, share in enumerate((smoothed.values.mean(axis=0) / users).tolist()):
        noise = users * unit_variance(law, share)
        walk = random_walk(
            smoothed.values[:, item],
            np.full(horizon, noise),
            users**2,
            boost=0.0,
            decay=0.0,
        )
        assert smoothed.shrunk[:, item] == pytest.approx(walk.offline, rel=1e-6)
    errors = [
        float(np.sqrt(np.mean((each - [4_000, 1_800, 200]) ** 2)))
        for each in (smoothed.values, smoothed.shrunk)
    ]
    assert errors[1] < 0.7 * errors[0]
    assert not hasattr(sampled_items(law_of(2.0, 60, horizon, complete=False)), "smoothed")
