"""Test cells shifted by messages: noise distributions, losses and their composition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.continual_counts import poisson_for_epochs
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    delta_of_tables,
    delta_spent,
    epsilon_spent,
    least_mean,
    shifted_losses,
)

pytestmark = pytest.mark.slow

NOISES: list[CellNoise] = [
    PoissonNoise(1e-6),
    PoissonNoise(0.5),
    PoissonNoise(42.7),
    PoissonNoise(1e5),
    BinomialNoise(1, 0.25),
    BinomialNoise(30, 0.75),
    BinomialNoise(100_000, 0.002),
    NegativeBinomialNoise(0.5, 3.0),
    NegativeBinomialNoise(1.0, 200.0),
    NegativeBinomialNoise(40.0, 82.1),
]


def frozen(noise: CellNoise) -> stats.rv_discrete:
    match noise:
        case PoissonNoise(mean):
            return stats.poisson(mean)
        case BinomialNoise(contributors, probability):
            return stats.binom(contributors, probability)
        case NegativeBinomialNoise():
            return stats.nbinom(noise.shape, noise.success)
    raise AssertionError(noise)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_noise_distributions_match_scipy(noise: CellNoise) -> None:
    law = frozen(noise)
    assert noise.mean == pytest.approx(law.mean(), rel=1e-12)
    assert noise.variance == pytest.approx(law.var(), rel=1e-12)
    low, high = noise.window(1e-20)
    counts = np.arange(low, high + 1)
    kept = law.logpmf(counts) > -46
    # For large means, scipy is the less accurate one.
    weights = np.log(noise.weights(low, high)[0][kept])
    assert weights == pytest.approx(law.logpmf(counts)[kept], abs=1e-7, rel=1e-7)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("tail", [1e-3, 1e-9])
def test_probability_outside_the_computed_range_is_bounded(noise: CellNoise, tail: float) -> None:
    low, high = noise.window(tail)
    assert frozen(noise).cdf(low - 1) <= tail
    assert frozen(noise).sf(high) <= tail
    assert high <= noise.largest


@pytest.mark.parametrize("noise", NOISES[1:], ids=repr)
@pytest.mark.parametrize("shift", [1, -1, 3, -3])
def test_losses_are_log_ratios_and_masses_sum_to_one(noise: CellNoise, shift: int) -> None:
    told = shifted_losses(noise, shift)
    assert told.masses.sum() + told.certain == pytest.approx(1, abs=1e-10)
    law = frozen(noise)
    # The masses of Q sum to 1 too: P e^-loss.
    possible_q = 1 - (law.cdf(-shift - 1) if shift < 0 else 0.0)
    if noise.largest < math.inf and shift > 0:
        possible_q = float(law.cdf(noise.largest - shift))
    assert (told.masses * np.exp(-told.losses)).sum() == pytest.approx(possible_q, abs=1e-9)


@pytest.mark.parametrize("noise", [PoissonNoise(42.7), NegativeBinomialNoise(40.0, 82.1)], ids=repr)
def test_omitted_tails_count_as_infinite_losses(noise: CellNoise) -> None:
    tail = 2.0**-10
    low, high = noise.window(tail)
    left_out = frozen(noise).cdf(low - 1) + frozen(noise).sf(high)
    assert 0 < left_out <= shifted_losses(noise, 1, tail).certain


PAIRS: list[list[ShiftedCells]] = [
    [ShiftedCells(PoissonNoise(8.0), 1, 2)],
    [ShiftedCells(PoissonNoise(8.0), 1, 1), ShiftedCells(PoissonNoise(8.0), -1, 1)],
    [ShiftedCells(PoissonNoise(30.0), 3, 1), ShiftedCells(PoissonNoise(9.0), 1, 2)],
    [ShiftedCells(BinomialNoise(9, 0.5), 1, 2), ShiftedCells(BinomialNoise(9, 0.3), -1, 1)],
    [ShiftedCells(NegativeBinomialNoise(5.0, 9.0), 1, 2)],
]


@pytest.mark.parametrize("parts", PAIRS, ids=repr)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
def test_delta_of_all_outcomes_is_a_tight_upper_bound(
    parts: list[ShiftedCells], epsilon: float
) -> None:
    mirrored = [ShiftedCells(part.noise, -part.shift, part.cells) for part in parts]
    exact = max(hockey_stick(each, epsilon) for each in (parts, mirrored))
    assert exact <= delta_spent(parts, epsilon) <= exact * (1 + 2e-3)


@pytest.mark.parametrize("parts", PAIRS, ids=repr)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_epsilon_and_delta_are_inverse_functions(parts: list[ShiftedCells], epsilon: float) -> None:
    delta = delta_spent(parts, epsilon)
    # If certain losses dominate, delta hardly depends on epsilon.
    assert delta_spent(parts, epsilon_spent(parts, delta)) <= delta * (1 + 1e-9)
    assert epsilon_spent(parts, delta) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last_epoch", "ups"),
    [(3, range(4)), (16, range(17)), (64, range(0, 65, 4)), (1024, (0, 1, 2, 16, 512, 1022, 1023))],
)
@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
def test_shifts_in_mixed_directions_are_no_worse_than_in_one_direction(
    last_epoch: int, ups: Sequence[int], epsilon: float
) -> None:
    """Every-epoch counts rely on the worst case that one stream has all the messages."""
    noise = poisson_for_epochs(epsilon, 1e-6, last_epoch)
    for up in ups:
        parts = [
            ShiftedCells(noise, shift, cells)
            for shift, cells in ((1, up), (-1, last_epoch - up))
            if cells
        ]
        assert delta_spent(parts, epsilon) <= 1e-6


def test_delta_grows_with_cells_and_shrinks_with_noise() -> None:
    def delta(mean: float, cells: int) -> float:
        return delta_spent([ShiftedCells(PoissonNoise(mean), 1, cells)], 1.0)

    assert delta(50.0, 1) < delta(50.0, 2) < delta(50.0, 20)
    assert delta(60.0, 2) < delta(50.0, 2) < delta(25.0, 2)


@pytest.mark.verify
def test_smallest_deltas_are_accurate_despite_rounding() -> None:
    """The lower bound is a convolution of losses rounded down, with only positive terms."""
    noise, cells, width = PoissonNoise(900.0), 32, 2e-4
    told = shifted_losses(noise, 1)
    points = np.floor(told.losses / width).astype(np.int64)
    masses = np.bincount(points - points.min(), told.masses)
    for _ in range(5):
        masses = np.convolve(masses, masses)
    losses = width * (int(points.min()) * cells + np.arange(len(masses)))
    for epsilon in (0.8, 1.0, 1.15):
        above = losses > epsilon
        below = float(np.dot(masses[above], -np.expm1(epsilon - losses[above])))
        spent = delta_spent([ShiftedCells(noise, 1, cells)], epsilon)
        assert below <= spent < 1.15 * below
    assert 1e-12 < below < 5e-11


def test_composition_of_thousands_of_cells_is_accurate() -> None:
    """Compare with a Gaussian sum of independent losses, by the central limit theorem."""
    cells, mean = 100_000, 2.0e6
    spent = delta_spent([ShiftedCells(PoissonNoise(mean), 1, cells)], 1.0)
    spread = math.sqrt(cells / mean)
    normal = stats.norm.sf(1 / spread - spread / 2) - math.e * stats.norm.sf(
        1 / spread + spread / 2
    )
    assert spent == pytest.approx(normal, rel=0.02)


@pytest.mark.parametrize("guess", [1e-6, 42.0, 1e9])
def test_least_mean_is_independent_of_the_initial_guess(guess: float) -> None:
    def parts(mean: float) -> list[ShiftedCells]:
        return [ShiftedCells(PoissonNoise(mean), 1, 3)]

    mean = least_mean(1.0, 1e-6, parts, guess)
    assert delta_spent(parts(mean), 1.0) <= 1e-6 < delta_spent(parts(mean * (1 - 1e-4)), 1.0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "complaint"),
    [
        (0.0, 1e-6, "epsilon is 0.0; expected a positive finite number"),
        (math.inf, 1e-6, "epsilon"),
        (math.nan, 1e-6, "epsilon"),
        (1.0, 0.0, "delta is 0.0; expected at least 1e-12 and below 1"),
        (1.0, 1e-13, "delta"),
        (1.0, 1.0, "delta"),
    ],
)
def test_targets_out_of_range_are_rejected(epsilon: float, delta: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        least_mean(epsilon, delta, lambda mean: [ShiftedCells(PoissonNoise(mean), 1, 1)], 1.0)


def test_target_that_no_noise_reaches_is_rejected() -> None:
    with pytest.raises(ValueError, match="noise of up to"):
        least_mean(1.0, 1e-6, lambda _: [ShiftedCells(PoissonNoise(1.0), 1, 1)], 1.0)
    with pytest.raises(ValueError, match="expected a nonzero 'shift'"):
        ShiftedCells(PoissonNoise(1.0), 0, 1)
    for corrupted in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="expected a positive finite number"):
            PoissonNoise(corrupted)
    with pytest.raises(ValueError, match="'probability' is 1"):
        BinomialNoise(5, 1.0)


def test_table_errors_are_charged_to_delta() -> None:
    """In the worst case, two distributions attain the bound, each moved away from the other."""
    epsilon, delta, moved = 1.0, 0.1, 0.01
    p = np.array([delta, (1 - delta) * math.e / (1 + math.e), (1 - delta) / (1 + math.e)])
    q = np.array([0.0, p[1] / math.e, 1 - p[1] / math.e])
    worse_p = p + np.array([moved, 0, -moved])
    worse_q = q + np.array([0, -moved, moved])
    spent = np.maximum(worse_p - math.e * worse_q, 0).sum()
    assert spent == pytest.approx(delta + delta_of_tables(epsilon, moved, draws=1))


def hockey_stick(parts: Sequence[ShiftedCells], epsilon: float) -> float:
    cells = [laws(part.noise, part.shift) for part in parts for _ in range(part.cells)]
    p, q = np.ones((2, 1))
    for single_p, single_q in cells:
        p, q = (np.outer(*pair).ravel() for pair in ((p, single_p), (q, single_q)))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def laws(noise: CellNoise, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    counts = np.arange(-abs(shift), noise.window(1e-12)[1] + abs(shift) + 1)
    law = frozen(noise)
    return law.pmf(counts), law.pmf(counts - shift)


def test_enumerated_delta_matches_its_definition() -> None:
    part = ShiftedCells(BinomialNoise(1, 0.25), 1, 2)
    chances = {0: 0.75, 1: 0.25}
    expected = 0.0
    for first, second in product((0, 1, 2), repeat=2):
        p = chances.get(first, 0) * chances.get(second, 0)
        q = chances.get(first - 1, 0) * chances.get(second - 1, 0)
        expected += max(0, p - math.e * q)
    assert hockey_stick([part], 1.0) == pytest.approx(expected)
