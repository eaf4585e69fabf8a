"""Test noise of overlapping cells against all possible views, in tiny spaces of messages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    jump_rates,
    poisson_for_overlapping,
    weight_law,
)
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, epsilon_spent
from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows
from tests.support.thinned import thinned

Words = frozenset[tuple[int, ...]]


def line(item: tuple[int, int], buckets: int) -> Words:
    directions = [(1, slope) for slope in range(buckets)] + [(0, 1)]
    return frozenset((*d, (d[0] * item[0] + d[1] * item[1]) % buckets) for d in directions)


def plane(buckets: int) -> list[Words]:
    return [line((x, y), buckets) for y in range(buckets) for x in range(buckets)]


SUNFLOWER = [frozenset({(0,), (10 + each,), (20 + each,)}) for each in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sets", "overlap", "mean", "deltas"),
    [
        (plane(2)[:2], 1 / 3, 5.0, (0.15, 0.1, 0.03)),
        (plane(3)[:2], 1 / 4, 5.0, (0.15, 0.1, 0.03)),
        (plane(2), 1 / 3, 8.0, (0.4, 0.3)),
        (SUNFLOWER, 1 / 3, 8.0, (0.4, 0.3)),
    ],
    ids=["plane of 2", "plane of 3", "all of a plane", "sunflower"],
)
def test_no_observation_exceeds_the_stated_loss(
    sets: list[Words], overlap: float, mean: float, deltas: Sequence[float]
) -> None:
    items = len(sets) // 2
    assert {len(one & other) / len(one) for one, other in combinations(sets, 2)} == {overlap}
    for delta in deltas:
        epsilon = epsilon_for_overlapping(mean, delta, overlap, items)
        assert 0 < epsilon < math.inf
        assert delta_of_views(sets, items, mean, epsilon) <= delta
        # The labels of the proof reveal a little more than an observer sees.
        assert delta_of_views(sets, items, mean, epsilon / 2) > delta / 3


def delta_of_views(sets: Sequence[Words], items: int, mean: float, epsilon: float) -> float:
    """Return delta over all message counts, between a user's first and second collection of sets.

    Messages that lie in the same sets are equivalent.
    """
    rate = mean / len(sets[0])
    kinds = Counter(
        tuple(word in each for each in sets) for word in frozenset[tuple[int, ...]]().union(*sets)
    )
    laws = [stats.poisson(rate * number) for number in kinds.values()]
    ranges = [np.arange(int(law.isf(1e-7)) + 1) for law in laws]
    counts = np.meshgrid(*ranges, indexing="ij", sparse=True)
    dummies = math.prod(law.pmf(each) for law, each in zip(laws, counts, strict=True))
    likelihoods = []
    for user in (range(items), range(items, 2 * items)):
        among = [[kind for kind, inside in enumerate(kinds) if inside[each]] for each in user]
        likelihood: NDArray[np.float64] = np.zeros(())
        for chosen in product(*among):
            ways: NDArray[np.float64] = np.ones(())
            for position, kind in enumerate(chosen):
                ways = ways * (counts[kind] - chosen[:position].count(kind))
            likelihood = likelihood + ways / mean**items
        likelihoods.append(likelihood)
    one, other = likelihoods
    return float((dummies * np.maximum(one - math.exp(epsilon) * other, 0)).sum())


@pytest.mark.parametrize("mean", [0.5, 20.0, 3000.0])
@pytest.mark.parametrize(("items", "overlap"), [(1, 0.0), (1, 0.3), (2, 1 / 3), (5, 0.01)])
def test_weight_distributions_of_both_neighbors_sum_to_one(
    mean: float, items: int, overlap: float
) -> None:
    weights, masses, left_out, _ = weight_law(mean, overlap, items)
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    assert (weights * masses).sum() == pytest.approx(mean, rel=1e-12)
    assert left_out < 1e-18


def test_loss_of_a_single_item_follows_from_two_poisson_counts() -> None:
    """Messages of one set have weight 1, those of both sets (half of them labeled) weight 2."""
    weights, masses, *_ = weight_law(5.0, 0.4, 1)
    alone, shared = stats.poisson(3.0), stats.poisson(1.0)
    for weight, mass in zip(weights[:40], masses[:40], strict=True):
        expected = sum(alone.pmf(weight - 2 * twice) * shared.pmf(twice) for twice in range(40))
        assert mass == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.slow
@pytest.mark.parametrize(("items", "overlap"), [(1, 0.2), (2, 0.1)])
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_epsilon_is_a_tight_bound_over_all_weights(
    items: int, overlap: float, epsilon: float
) -> None:
    mean = 12.0
    weights, masses, *_ = weight_law(mean, overlap, items)
    likely = masses > 1e-6
    weights, masses = weights[likely], masses[likely]
    absent, present = np.ones(1), np.ones(1)
    for _ in range(items):
        absent = np.outer(absent, masses).ravel()
        present = np.outer(present, masses * weights / mean).ravel()
    # Equal numbers of removed and added messages.
    one, other = np.outer(absent, present), np.outer(present, absent)
    delta = float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
    spent = epsilon_for_overlapping(mean, delta, overlap, items)
    assert epsilon <= spent <= epsilon * 1.002


@pytest.mark.parametrize("items", [1, 2, 3, 6])
def test_dominating_jumps_are_the_largest_in_convex_order(items: int) -> None:
    """Extreme covers suffice: messages lie in one set or in `items` sets."""
    mean, overlap = 1.0, 0.9 / (2 * items - 1)
    beta, ceilings = (2 * items - 1) * overlap, np.linspace(0, 2 * items + 1, 500)
    most = sum(
        rate * np.maximum(size / 2 - ceilings, 0)
        for size, rate in jump_rates(mean, overlap, items).items()
    )
    attained = np.zeros_like(most)
    for covered in range(2, 2 * items + 1):
        share = beta / (covered - 1)
        cover = (1 - share) * np.maximum(1 - ceilings, 0)
        cover += share / covered * np.maximum(covered - ceilings, 0)
        assert (cover <= most + 1e-12).all()
        attained = np.maximum(attained, cover)
    # Smaller jumps would not suffice.
    assert attained == pytest.approx(most, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "epochs", "epsilon"),
    thinned(
        [
            (items, epochs, epsilon)
            for items, epochs in ((1, 1), (3, 1), (1, 64), (2, 10))
            for epsilon in (0.25, 1.0, 4.0)
        ],
        2,
    ),
)
def test_noise_without_overlap_equals_the_noise_for_a_single_row(
    epsilon: float, items: int, epochs: int
) -> None:
    expected = poisson_for_rows(epsilon, 1e-6, 1, items, epochs).mean
    means = [
        poisson_for_overlapping(epsilon, 1e-6, overlap, items, epochs)
        for overlap in (0.0, 1e-6, 1e-3, 1e-2)
    ]
    assert means[0] == pytest.approx(expected, rel=2e-5)
    assert means[1] == pytest.approx(expected, rel=1e-4)
    assert means == sorted(means)


@pytest.mark.parametrize(("overlap", "items", "epochs"), [(0.25, 1, 1), (1 / 64, 3, 2)])
def test_mean_number_of_dummies_is_minimal(overlap: float, items: int, epochs: int) -> None:
    mean = poisson_for_overlapping(1.0, 1e-6, overlap, items, epochs)
    assert epsilon_for_overlapping(mean, 1e-6, overlap, items, epochs) <= 1
    assert epsilon_for_overlapping(mean * 0.999, 1e-6, overlap, items, epochs) > 1


@pytest.mark.parametrize("mean", [42.7, 42.7 / 2])
def test_epsilon_without_overlap_equals_the_epsilon_for_disjoint_cells(mean: float) -> None:
    parts = [ShiftedCells(PoissonNoise(mean), shift, 1) for shift in (1, -1)]
    found = epsilon_for_overlapping(mean, 1e-6, 0.0)
    assert found == pytest.approx(epsilon_spent(parts, 1e-6), rel=1e-4)
    assert epsilon_for_overlapping(mean / 10, 1e-6, 0.0) == math.inf


@pytest.mark.parametrize(
    ("overlap", "items", "epochs", "complaint"),
    [
        (0.5, 2, 1, "overlap is 0.5 with 2 items per user; expected 0 to 1 / 3"),
        (-0.1, 1, 1, "overlap is -0.1"),
        (0.1, 0, 1, "items is 0; expected a positive integer"),
        (0.1, 1, 1.5, "epochs is 1.5; expected a positive integer"),
    ],
)
def test_invalid_overlap_parameters_are_rejected(
    overlap: float, items: int, epochs: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        poisson_for_overlapping(1.0, 1e-6, overlap, items, epochs)
    with pytest.raises(ValueError, match=complaint):
        epsilon_for_overlapping(10.0, 1e-6, overlap, items, epochs)
