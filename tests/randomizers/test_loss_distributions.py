"""Test losses of up to 2^24 cells: delta and epsilon are tight upper bounds on the true values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.continual_counts import poisson_for_epochs
from dpstream.randomizers.accounting.directions import ShiftedEitherWay, dominating
from dpstream.randomizers.accounting.item_streams import ItemReports, epsilon_for_items
from dpstream.randomizers.accounting.loss_distributions import (
    LossDistribution,
    Losses,
    Powers,
    on_grid,
)
from dpstream.randomizers.accounting.overlapping_cells import epsilon_for_overlapping
from dpstream.randomizers.accounting.renyi_shift import renyi_epsilon, shift_divergence
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    delta_spent,
    epsilon_spent,
    shifted_losses,
)
from tests.randomizers.high_precision import log_transform, renyi_divergence, true_delta
from tests.support.thinned import thinned

CELLS = [1_000, 200_000, 500_000, 1 << 20, 1 << 24]
# Pairs of epsilon and mean noise per cell, with deltas of 1e-6, 1e-12 and some of 0.1.
TARGETS = [(1.0, 17.86), (1.0, 42.0), (0.1, 3_900.0), (4.0, 3.3), (0.25, 20.0)]
NEAR = 1.01


def test_log_transform_equals_the_log_of_the_sum_over_all_counts() -> None:
    mean = mpmath.mpf(4_000)
    for power in (mpmath.mpc(-20, 3), mpmath.mpc(15, -30)):
        term, whole = mpmath.exp(-mean), mpmath.mpf(0)
        for count in range(1, 8_000):
            term *= mean / count
            whole += term * mpmath.power(count / mean, power)
        assert abs(log_transform(mean, power) - mpmath.log(whole)) < mpmath.mpf(10) ** -25


@pytest.mark.parametrize(
    ("cells", "epsilon", "share"),
    thinned([(cells, *target) for cells, target in product(CELLS, TARGETS)]),
)
def test_delta_is_a_tight_upper_bound(cells: int, epsilon: float, share: float) -> None:
    mean = share * cells
    true = true_delta(mean, cells, 0, epsilon)
    assert 1e-14 < true < 0.5
    spent = delta_spent([ShiftedCells(PoissonNoise(mean), 1, cells)], epsilon)
    assert true <= spent <= NEAR * true


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "part"), thinned(list(product(CELLS[1:], [0.0, 0.3, 0.5])), 4))
def test_delta_of_mixed_directions_is_a_tight_upper_bound(cells: int, part: float) -> None:
    mean, ups = 42.0 * cells, int(part * cells)
    true = true_delta(mean, ups, cells - ups, 1.0)
    spent = ShiftedEitherWay(PoissonNoise(mean), cells).delta(ups, 1.0)
    assert true <= spent <= NEAR * true


@pytest.mark.parametrize(("cells", "delta"), thinned(list(product(CELLS, [1e-6, 1e-11, 1e-12])), 2))
def test_epsilon_is_a_tight_upper_bound(cells: int, delta: float) -> None:
    mean = 30.0 * cells
    epsilon = epsilon_spent([ShiftedCells(PoissonNoise(mean), 1, cells)], delta)
    assert true_delta(mean, cells, 0, epsilon) <= delta
    assert true_delta(mean, cells, 0, 0.999 * epsilon) > delta


def test_epsilon_is_infinite_when_delta_is_too_small() -> None:
    # A cell has no noise, and hides nothing, with probability e^-10.
    assert ShiftedEitherWay(PoissonNoise(10.0), 4).epsilon(1e-6) == math.inf
    assert ShiftedEitherWay(PoissonNoise(10.0), 4).epsilon(1e-3) < 10


@pytest.mark.parametrize(
    ("epsilon", "delta", "epochs"),
    [(1.0, 1e-11, 500_000), pytest.param(0.5, 1e-12, 1 << 20, marks=pytest.mark.verify)],
)
def test_noise_for_many_epochs_is_sufficient_and_minimal(
    epsilon: float, delta: float, epochs: int
) -> None:
    mean = poisson_for_epochs(epsilon, delta, epochs).mean
    assert true_delta(mean, epochs, 0, epsilon) <= delta
    assert true_delta(mean * (1 - 1e-3), epochs, 0, epsilon) > delta


@pytest.mark.parametrize("pairs", [CELLS[1] // 2, 1 << 19])
def test_epsilon_of_overlapping_cells_and_items_is_tight(pairs: int) -> None:
    mean, delta = 60.0 * pairs, 1e-11
    reports = ItemReports(pairs, 0, 0, 0.0)
    for epsilon in (
        epsilon_for_overlapping(mean, delta, 0.0, epochs=pairs),
        epsilon_for_items(mean, None, delta, reports),
    ):
        assert true_delta(mean, pairs, pairs, epsilon) <= delta
        assert true_delta(mean, pairs, pairs, 0.999 * epsilon) > delta


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("alpha", [1.5, 22.0])
def test_renyi_divergence_is_a_tight_upper_bound(cells: int, alpha: float) -> None:
    mean = 20.0 * cells
    true = renyi_divergence(mean, alpha)
    stated = shift_divergence(PoissonNoise(mean), 1, alpha)
    assert true <= stated <= true * (1 + 1e-4)


@pytest.mark.parametrize("cells", CELLS)
def test_renyi_epsilon_is_a_tight_upper_bound(cells: int) -> None:
    mean, delta = 30.0 * cells, 1e-11
    epsilon, alpha = renyi_epsilon(PoissonNoise(mean), {1: cells}, delta)
    least = min(
        cells * renyi_divergence(mean, order)
        + mpmath.log((order - 1) / mpmath.mpf(order))
        - (mpmath.log(delta) + mpmath.log(order)) / (order - 1)
        for order in (0.9 * alpha, 0.99 * alpha, alpha, 1.01 * alpha, 1.1 * alpha)
    )
    assert least <= epsilon <= least * (1 + 1e-3)


@pytest.mark.parametrize(
    "noise",
    [
        PoissonNoise(1e-6),
        PoissonNoise(13.3),
        PoissonNoise(3e8),
        BinomialNoise(10**6, 0.3),
        BinomialNoise(40, 0.9),
        NegativeBinomialNoise(25.0, 1e5),
        NegativeBinomialNoise(0.5, 3.0),
    ],
    ids=repr,
)
def test_weights_and_losses_are_within_their_error_bounds(noise: CellNoise) -> None:
    low, high = noise.window(1e-30)
    masses, error = noise.weights(low, high)
    assert error < 1e-11
    told = shifted_losses(noise, 2)
    # The losses belong to the noise values that remain possible after a shift by 2.
    for index in np.linspace(0, len(told.losses) - 1, 7).astype(int):
        count = int(np.flatnonzero(masses == told.masses[index])[0]) + low
        exact = log_law(noise, count)
        if exact > -500:
            assert abs(mpmath.log(mpmath.mpf(float(masses[count - low]))) - exact) <= error
    assert told.masses.sum() + told.certain == pytest.approx(1, abs=1e-10)
    counts = [low + int(np.argmax(masses)), low + int(0.7 * (high - low))]
    for count in counts:
        if count >= 2 and masses[count - low] > 1e-50:
            exact = log_law(noise, count) - log_law(noise, count - 2)
            assert np.abs(told.losses - float(exact)).min() <= told.slack + 1e-15 * abs(exact)


def log_law(noise: CellNoise, count: int) -> mpmath.mpf:
    z = mpmath.mpf(count)
    if isinstance(noise, PoissonNoise):
        mean = mpmath.mpf(noise.mean)
        return z * mpmath.log(mean) - mean - mpmath.loggamma(z + 1)
    if isinstance(noise, BinomialNoise):
        n, p = mpmath.mpf(noise.contributors), mpmath.mpf(noise.probability)
        ways = mpmath.loggamma(n + 1) - mpmath.loggamma(z + 1) - mpmath.loggamma(n - z + 1)
        return ways + z * mpmath.log(p) + (n - z) * mpmath.log1p(-p)
    assert isinstance(noise, NegativeBinomialNoise)
    shape, mean = mpmath.mpf(noise.shape), mpmath.mpf(noise.mean)
    ways = mpmath.loggamma(z + shape) - mpmath.loggamma(z + 1) - mpmath.loggamma(shape)
    return ways + shape * mpmath.log(shape / (shape + mean)) + z * mpmath.log(mean / (shape + mean))


@pytest.mark.parametrize("contributors", [1_000, 10**6, 10**8])
def test_scipy_binomial_errors_are_below_a_fifth_of_the_error_bound(
    contributors: int,
) -> None:
    charged = 1e-13 + 1e-14 * math.sqrt(contributors)
    noise = BinomialNoise(contributors, 0.5)
    spread = math.sqrt(contributors) / 2
    for deviations in (-9, -5, -1, 0, 1, 5, 9):
        count = int(contributors / 2 + deviations * spread)
        exact = mpmath.exp(log_law(noise, count))
        assert abs(stats.binom.pmf(count, contributors, 0.5) / exact - 1) < charged / 5


DISTRIBUTIONS = [
    on_grid(shifted_losses(PoissonNoise(9.0), 1), 0.02),
    on_grid(shifted_losses(NegativeBinomialNoise(3.0, 20.0), -2), 0.02),
    LossDistribution(0.02, -7, np.array([0.25, 0.5, 0.0, 0.125]), 0.125),
]


@pytest.mark.parametrize("one", DISTRIBUTIONS, ids=["poisson", "negative binomial", "by hand"])
def test_coarser_grid_has_the_same_mass_and_no_smaller_delta(one: LossDistribution) -> None:
    coarse = one.coarser()
    assert coarse.width == 2 * one.width
    assert coarse.masses.sum() == pytest.approx(one.masses.sum(), rel=1e-14)
    for epsilon in np.linspace(-2, 2, 81):
        assert one.delta(epsilon) <= coarse.delta(epsilon) * (1 + 1e-13)
        assert coarse.delta(epsilon) <= one.delta(epsilon) + one.width / 2


def test_compositions_on_coarser_grids_are_tight_upper_bounds() -> None:
    told = shifted_losses(PoissonNoise(900.0), 1)
    fine, coarse = on_grid(told, 1e-4), on_grid(told, 1e-3)
    assert len(fine.masses) > 4_096 > len(coarse.masses)
    one, two = (Powers(each, 5).of(5) for each in (fine, coarse))
    exact = np.convolve(fine.masses, fine.masses)
    exact = np.convolve(np.convolve(exact, exact), fine.masses)
    losses = 1e-4 * (5 * fine.first + np.arange(len(exact)))
    for epsilon in (0.0, 0.1, 0.3):
        above = losses > epsilon
        true = float(exact[above] @ -np.expm1(epsilon - losses[above]))
        for each in (one, two):
            assert true <= each.delta(epsilon) <= 1.002 * true


def test_truncated_mass_counts_as_a_larger_loss_or_an_infinite_loss() -> None:
    masses = np.array([1e-9, 0.4, 0.6, 1e-10])
    one = LossDistribution(0.1, -1, masses, 0.0)
    none = LossDistribution(0.1, 0, np.ones(1), 0.0)
    cut = one.composed_with(none, truncated=1e-8)
    assert cut.first == 0
    assert len(cut.masses) == 2
    assert cut.certain == 1e-10
    assert cut.masses[0] == 0.4 + 1e-9


def test_probabilities_of_an_infinite_loss_are_composed() -> None:
    one = LossDistribution(0.1, 0, np.array([0.9]), 0.1)
    other = LossDistribution(0.1, 0, np.array([0.8]), 0.2)
    for both in (one.composed_with(other), other.composed_with(one)):
        assert both.certain == pytest.approx(0.28)
        assert both.masses.sum() + both.certain == pytest.approx(1)


def test_epsilon_is_infinite_for_a_small_delta_and_0_for_a_large_delta() -> None:
    one = on_grid(Losses(np.array([-0.5, 0.5]), np.array([0.4, 0.5]), 0.1, 0.0, 0.0), 0.1)
    assert one.epsilon(0.09) == math.inf
    assert one.epsilon(0.5) == 0.0
    assert 0.4 < one.epsilon(0.101) < 0.7


def test_error_bounds_accumulate_in_compositions() -> None:
    one = LossDistribution(0.1, 0, np.ones(3) / 3, 0.0, slack=1e-3, rounding=1e-2)
    power = Powers(one, 8).of(8)
    assert power.slack == pytest.approx(8e-3)
    assert 0.08 < power.rounding < 0.08 + 1e-12
    shifted = LossDistribution(0.1, 0, np.ones(3) / 3, 0.0)
    assert one.delta(0.0) >= shifted.delta(-1e-3) * math.exp(1e-2)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 1000])
def test_running_and_window_sums_match_numpy(length: int) -> None:
    terms = np.random.default_rng(length).normal(size=1_000)
    sums = rounding.running_sums(terms[:length])
    assert sums == pytest.approx(np.cumsum(terms[:length]), abs=1e-12)
    windows = np.lib.stride_tricks.sliding_window_view(terms, length).sum(axis=1)
    assert rounding.window_sums(terms, length) == pytest.approx(windows, abs=1e-12)


def test_running_sums_of_millions_are_within_their_error_bound() -> None:
    terms = np.full(3_000_000, 0.1)
    exact = 3_000_000 * mpmath.mpf(0.1)
    last = rounding.running_sums(terms)[-1]
    assert abs(last / exact - 1) < rounding.additions(len(terms)) * rounding.UNIT


# Shifts in either direction.

NOISES: list[CellNoise] = [
    PoissonNoise(0.7),
    PoissonNoise(6.3),
    PoissonNoise(33.16),
    BinomialNoise(12, 0.4),
    NegativeBinomialNoise(4.0, 9.0),
]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_dominating_distribution_has_the_larger_of_both_deltas_at_every_epsilon(
    noise: CellNoise,
) -> None:
    cells = ShiftedEitherWay(noise, 1)
    up, down, both = (each.of(1) for each in cells._kinds)
    assert both.masses.min() >= 0
    assert both.masses.sum() + both.certain == pytest.approx(1, abs=1e-9)
    # Between two grid points delta is linear in e^epsilon, as for all distributions.
    for point in range(both.first, both.last + 2):
        epsilon = point * both.width
        larger = max(up.delta(epsilon), down.delta(epsilon))
        assert larger <= both.delta(epsilon) * (1 + 1e-14)
        assert both.delta(epsilon) <= larger * (1 + 1e-9) + 1e-12


def test_dominating_distribution_is_correct_for_epsilon_below_all_losses() -> None:
    # The first distribution has the larger delta at the least loss, the second next to it.
    one = LossDistribution(0.5, 0, np.array([0.1, 0.8]), 0.1)
    other = LossDistribution(0.5, 0, np.array([0.8, 0.0]), 0.2)
    both = dominating(one, other)
    assert one.delta(0.0) > other.delta(0.0)
    assert one.delta(0.5) < other.delta(0.5)
    for point in range(-4, 3):
        epsilon = point * both.width
        assert max(one.delta(epsilon), other.delta(epsilon)) <= both.delta(epsilon) * (1 + 1e-14)


@pytest.mark.parametrize(
    ("noise", "cells", "epsilon"),
    thinned(list(product(NOISES, [1, 2, 3], [0.003, 0.3, 1.5])), 2),
)
def test_delta_is_a_tight_bound_for_every_pattern_of_directions(
    noise: CellNoise, cells: int, epsilon: float
) -> None:
    patterns = list(product((1, -1), repeat=cells))
    true = [hockey_stick(noise, pattern, epsilon) for pattern in patterns]
    either = ShiftedEitherWay(noise, cells)
    for pattern, exact in zip(patterns, true, strict=True):
        spent = either.delta(pattern.count(1), epsilon)
        assert exact <= spent <= exact * (1 + 1e-2) + 5e-8
    assert either.private(epsilon, 1.02 * max(true) + 5e-8)
    # A single pattern above delta violates privacy.
    assert not either.private(epsilon, 0.999 * max(true))


# Epsilon 0.05 and a smaller delta would need too many outcomes.
@pytest.mark.parametrize(
    ("epsilon", "delta", "epochs"),
    [
        *product([1.0, 4.0], [0.3, 1e-2, 1e-6], [1, 2, 3]),
        *product([0.05], [0.3], [1, 2, 3]),
        *product([0.05], [1e-2], [1, 2]),
    ],
)
def test_noise_suffices_for_all_pairs_of_streams(epsilon: float, delta: float, epochs: int) -> None:
    """Enumerate pairs of streams of 0 and 1 that differ in some epochs, in either direction."""
    noise = poisson_for_epochs(epsilon, delta, epochs)
    worst = max(
        hockey_stick(noise, pattern, epsilon) for pattern in product((1, 0, -1), repeat=epochs)
    )
    assert worst <= delta


@pytest.mark.parametrize(("epsilon", "epochs"), [(0.25, 64), (1.0, 170), (1.0, 1024), (4.0, 1024)])
def test_chosen_noise_is_private_for_all_patterns_of_directions(
    epsilon: float, epochs: int
) -> None:
    noise = poisson_for_epochs(epsilon, 1e-6, epochs)
    either = ShiftedEitherWay(noise, epochs)
    assert either.private(epsilon, 1e-6)
    if epochs <= 170:
        assert max(either.delta(ups, epsilon) for ups in range(epochs + 1)) <= 1e-6


def hockey_stick(noise: CellNoise, pattern: Sequence[int], epsilon: float) -> float:
    counts = np.arange(-1, noise.window(1e-13)[1] + 2)
    law = np.array([float(each) for each in laws(noise, counts)])
    moved = np.array([float(each) for each in laws(noise, counts - 1)])
    p, q = np.ones((2, 1))
    for direction in pattern:
        # In cells that are shifted up, the first neighbor does not have the message.
        one, two = {1: (law, moved), -1: (moved, law), 0: (law, law)}[direction]
        if direction:
            p, q = np.outer(p, one).ravel(), np.outer(q, two).ravel()
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def laws(noise: CellNoise, counts: Iterable[int]) -> list[mpmath.mpf]:
    return [
        mpmath.exp(log_law(noise, int(count))) if 0 <= count <= noise.largest else mpmath.mpf(0)
        for count in counts
    ]
