"""Ranges of numbers from sampled responses: exact variances, intervals, windows, states."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.sampled_numbers import (
    SampledNumbersAggregator,
    asked_level,
    sampled_numbers,
)
from dpstream.aggregators.sampled_ranges import SampledRanges
from dpstream.aggregators.tree_counts import level_values
from dpstream.pipeline.conformance.laws.sampled_response import sets_of
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import SampledResponseLaw
from dpstream.randomizers.sampled_response.calibration import calibrate_numbers
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponse,
    LeveledResponseLaw,
    node_variance,
)

Array = NDArray[np.float64]
COUNTS = np.array([40, 0, 9, 1, 25, 3, 0, 22])


def answers_of(level: SampledResponseLaw) -> tuple[Array, Array]:
    """Return the mean and the covariance of the membership in all sets, for users of each node.

    Everything is summed over all points; shapes (nodes, nodes) and (nodes, nodes, nodes).
    """
    sets = sets_of(level.sets)[: level.items]
    inside = np.array([[point in one for one in sets] for point in range(level.sets.points)], float)
    own, other = level.flips.weights
    means, covariances = [], []
    for node in range(level.items):
        likely = np.where(inside[:, node] > 0, float(own), float(other))
        likely /= likely.sum()
        mean = likely @ inside
        means.append(mean)
        covariances.append((inside - mean).T @ np.diag(likely) @ (inside - mean))
    return np.array(means), np.array(covariances)


def exact_covariance(law: LeveledResponseLaw, counts: Array, reports: tuple[int, ...]) -> Array:
    """Return the covariance of all buckets if `reports` random users answer about each level."""
    tree, users = law.code, counts.sum()
    assert isinstance(tree, Levels)
    weights = [0.0, *(node_variance(level) for level in law.levels)]
    starts = np.cumsum([0, *tree.nodes])
    maps = level_values(tree, np.eye(tree.cells), weights)
    total = np.zeros((law.items, law.items))
    expected: list[Array] = []
    for index, (level, asked) in enumerate(zip(law.levels, reports, strict=True)):
        own, other = map(float, level.probabilities)
        to_buckets = maps[:, starts[index + 1] : starts[index + 2]] * users / (own - other)
        mean, covariance = answers_of(level)
        held = counts.reshape(level.items, -1).sum(axis=1) / users
        total += to_buckets @ np.tensordot(held, covariance, 1) @ to_buckets.T / asked
        nodes = np.arange(law.items) * level.items // law.items
        of_users = mean[nodes] @ to_buckets.T
        expected.append(of_users - counts @ of_users / users)
        sampled = expected[-1].T @ np.diag(counts / users) @ expected[-1]
        total += (users - asked) / (asked * (users - 1)) * sampled
    for one, other_ in combinations(expected, 2):
        shared = one.T @ np.diag(counts / users) @ other_ / (users - 1)
        total -= shared + shared.T
    return total


def ranges_of(law: LeveledResponseLaw, counts: Array, reports: tuple[int, ...]) -> SampledRanges:
    users = float(counts.sum())
    levels = zip(law.levels, reports, strict=True)
    asked = tuple(asked_level(level, each, users) for level, each in levels)
    return SampledRanges.of(counts.astype(float), asked, sum(reports), int(users))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("reports", [(30, 20), (3, 61), (1, 1)])
def test_variances_of_all_ranges_are_exact(epsilon: float, reports: tuple[int, ...]) -> None:
    law = calibrate_numbers(epsilon, 8, 4)
    if len(law.levels) == 1:
        reports = reports[1:]
    found = ranges_of(law, COUNTS, reports)
    covariance = exact_covariance(law, COUNTS.astype(float), reports)
    for start, end in combinations(range(9), 2):
        expected = covariance[start:end, start:end].sum()
        assert float(found.variances(start, end)) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_range_variances_are_nearly_exact_for_answers_by_hyperplane() -> None:
    law = calibrate_numbers(2.0, 64, 4)
    counts = np.random.default_rng(3).integers(0, 60, 64).astype(float)
    reports = (80, 70, 90)
    covariance = exact_covariance(law, counts, reports)
    starts, ends = np.array(list(combinations(range(65), 2))).T
    stated = ranges_of(law, counts, reports).variances(starts, ends)
    exact = [covariance[s:e, s:e].sum() for s, e in zip(starts, ends, strict=True)]
    assert np.abs(np.sqrt(stated / np.maximum(exact, 1e-9)) - 1)[:-1].max() < 1
    assert np.sqrt(stated.mean() / np.mean(exact)) == pytest.approx(1, abs=0.02)


def simulated(law: LeveledResponseLaw, values: NDArray[np.int64], seed: int) -> list[SampledRanges]:
    """Return the estimates of all epochs for users whose values never change."""
    devices, rng = LeveledResponse(law), seeded_generator(seed)
    devices.enroll(len(values), rng)
    aggregator = sampled_numbers(law)
    participation = Participation.constant(law.last_epoch, len(values))
    found = []
    for epoch in range(1, law.last_epoch + 1):
        aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        found.append(estimate)
    return found


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_intervals_for_buckets_ranges_and_quantiles_have_nominal_coverage(epsilon: float) -> None:
    law, rng = calibrate_numbers(epsilon, 64, 4), np.random.default_rng(1)
    values = 1 + np.minimum(rng.exponential(9, 20_000).astype(np.int64), 63)
    below = np.insert(np.cumsum(np.bincount(values - 1, minlength=64)), 0, 0)
    starts, ends = np.array(list(combinations(range(65), 2))).T[:, :-1]
    truth = below[ends] - below[starts]
    median = float(np.median(values - 1))
    covered, quantiles = [], 0
    for seed in range(12):
        for found in simulated(law, values, seed):
            _, low, high = found.ranges(starts, ends)
            covered.append((low <= truth) & (truth <= high))
            of_median = found.quantile(0.5)
            quantiles += of_median.ci95_low <= median < of_median.ci95_high
    single = ends - starts == 1
    assert 0.92 < np.mean(covered) < 0.975
    assert 0.93 < np.mean(np.array(covered)[:, single]) < 0.97
    assert quantiles >= 0.9 * len(covered)


def test_estimates_are_unbiased_with_the_stated_variance() -> None:
    law, values = calibrate_numbers(1.0, 16, 4), np.repeat(np.arange(1, 17), 400)
    found = [each for seed in range(30) for each in simulated(law, values, seed)]
    starts, ends = np.arange(16), np.arange(1, 17)
    errors = np.array([each.values - 400 for each in found])
    stated = np.sqrt(found[0].variances(starts, ends))
    standardized = errors / stated
    assert np.abs(standardized.mean(axis=0)).max() < 5 / np.sqrt(len(found))
    assert np.square(standardized).mean() == pytest.approx(1, abs=0.1)


def add(aggregator: SampledNumbersAggregator, epoch: int, *words: int) -> None:
    aggregator.add(epoch, np.array(words, aggregator.law.message_format.dtype)[:, None], None)


def test_levels_without_answers_are_omitted_from_estimates() -> None:
    law = calibrate_numbers(1.0, 16, 4)
    participation, aggregator = Participation.constant(4, 100), sampled_numbers(law)
    last = law.first_words[1]
    assert aggregator.estimate(1, participation) is None
    add(aggregator, 1, 0, 1)
    assert aggregator.estimate(1, participation) is None
    add(aggregator, 2, last, last + 7)
    found = aggregator.estimate(2, participation)
    assert found is not None
    assert [level.nodes for level in found.levels] == [16]
    assert found.reports == 2
    assert float(found.values.sum()) == pytest.approx(100)
    add(aggregator, 2, 3)
    both = aggregator.estimate(2, participation)
    assert both is not None
    assert [level.nodes for level in both.levels] == [4, 16]
    assert float(both.variances(0, 8)) < float(found.variances(0, 8))


def estimates(reports: tuple[tuple[int, ...], ...]) -> list[SampledRanges]:
    law = calibrate_numbers(1.0, 16, 12)
    return [ranges_of(law, np.full(16, 60), each) for each in reports]


def test_ranges_of_means_over_several_epochs_have_smaller_errors() -> None:
    epochs = estimates(((40, 40), (40, 40), (80, 80), (20, 20)))
    mean = epochs[0].of_window(ItemEstimates(epochs[0].values, 9.9, 19.4, 360, 960), epochs)
    assert isinstance(mean, SampledRanges)
    for start, end in ((0, 1), (2, 11), (0, 8)):
        expected = sum(float(each.variances(start, end)) for each in epochs) / 16
        assert float(mean.variances(start, end)) == pytest.approx(expected)
    assert mean.half_width == pytest.approx(NORMAL_95 * mean.standard_error)
    assert SampledRanges.from_json(mean.to_json()).to_json() == mean.to_json()


def test_means_are_as_accurate_as_if_all_epochs_had_the_fewest_levels() -> None:
    complete, other = estimates(((40, 40), (40, 40)))
    single = replace(other, levels=other.levels[1:])
    mean = complete.of_window(ItemEstimates(complete.values, 1, 2, 3, 960), [complete, single])
    assert isinstance(mean, SampledRanges)
    assert float(mean.variances(0, 8)) <= float(single.variances(0, 8)) / 2 + 1e-6
    assert float(mean.variances(0, 8)) > float(complete.variances(0, 8)) / 2


@pytest.mark.parametrize(
    "changed",
    [
        {"epochs": 0},
        {"asked_levels": []},
        {"asked_levels": [[16, 1, 1, 1, 1], [4, 1, 1, 1, 1]]},
        {"asked_levels": [[3, 1, 1, 1, 1], [16, 1, 1, 1, 1]]},
        {"asked_levels": [[4, 0, 1, 1, 1], [16, 1, 1, 1, 1]]},
    ],
)
def test_invalid_estimates_are_rejected(changed: dict[str, Any]) -> None:
    (found,) = estimates(((40, 40),))
    assert SampledRanges.from_json(found.to_json()).to_json() == found.to_json()
    with pytest.raises(ValueError, match=r"levels (have|of) "):
        SampledRanges.from_json({**found.to_json(), **changed})
