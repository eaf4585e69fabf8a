"""Compare computed noise with the reference's printed tables and with exact values.

Exact values are bracketed by losses from scipy's probabilities, rounded up or down on a grid
several times finer than that of the accounting. A computed mean is private with losses rounded up;
a mean half a percent smaller is not private even with losses rounded down.

Some printed means are up to 1.7 % above the necessary mean; computed means must never exceed
printed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.accounting.boosted_counts import (
    BoostedReports,
    best_boost,
    poisson_for_boosted,
)
from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.continual_counts import (
    epoch_shifts,
    negative_binomial_for_epochs,
    poisson_for_epochs,
)
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    delta_of_tables,
    delta_spent,
    epsilon_spent,
    least_mean,
    shifted_losses,
)
from dpstream.randomizers.accounting.shuffled_oracles import (
    negative_binomial_for_rows,
    poisson_for_rows,
    row_shifts,
)
from tests.support.thinned import thinned

pytestmark = pytest.mark.slow

DELTA = 1e-6
# Tolerance for printed values, except where the bracket proves that less noise suffices.
NEAR = 0.01
BRACKET = 0.995

ROWS: list[tuple[float, float, dict[int, float]]] = [
    (1e-6, 0.25, {1: 481, 5: 2395, 10: 4824}),
    (1e-6, 0.5, {1: 136, 5: 653, 10: 1310}),
    (1e-6, 1.0, {1: 42.7, 5: 180.6, 10: 359.6, 20: 721}),
    (1e-6, 2.0, {1: 18.1, 5: 51.8, 10: 101}),
    (1e-6, 4.0, {1: 13.8, 5: 17.2, 10: 29.9}),
    (1e-8, 1.0, {1: 62.1, 5: 263, 10: 524}),
    (1e-10, 1.0, {1: 82.2, 5: 350, 10: 702}),
]
# These values are printed 1.5 and 1.7 % above the exact values.
COARSE = {(1e-6, 0.25, 10), (1e-10, 1.0, 10)}


@pytest.mark.parametrize(
    ("delta", "epsilon", "rows", "printed"),
    [
        (delta, epsilon, rows, mean)
        for delta, epsilon, means in ROWS
        for rows, mean in means.items()
    ],
)
def test_poisson_noise_of_hash_rows_matches_the_reference(
    delta: float, epsilon: float, rows: int, printed: float
) -> None:
    mean = poisson_for_rows(epsilon, delta, rows).mean
    assert_least(lambda scale: row_shifts(PoissonNoise(mean * scale), rows), epsilon, delta)
    assert mean < printed * (1 + 0.002)
    if (delta, epsilon, rows) not in COARSE:
        assert mean > printed * (1 - NEAR)


@pytest.mark.parametrize(
    ("epsilon", "rows", "shape", "printed"),
    [
        (1.0, 1, 120, 38.5),
        (1.0, 5, 40, 74.7),
        pytest.param(1.0, 10, 30, 98.0, marks=pytest.mark.verify),
        pytest.param(1.0, 20, 20, 121, marks=pytest.mark.verify),
        (0.5, 10, 30, 198),
        (2.0, 10, 30, 46.7),
    ],
)
def test_negative_binomial_noise_of_hash_rows_matches_the_reference(
    epsilon: float, rows: int, shape: int, printed: float
) -> None:
    poisson = poisson_for_rows(epsilon, DELTA, rows).mean
    noise_of = partial(NegativeBinomialNoise, shape)
    mean = least_mean(epsilon, DELTA, lambda mean: row_shifts(noise_of(mean), rows), poisson)
    assert mean == pytest.approx(printed, rel=NEAR)
    assert_least(
        lambda scale: row_shifts(NegativeBinomialNoise(shape, mean * scale), rows), epsilon, DELTA
    )
    best = negative_binomial_for_rows(epsilon, DELTA, rows)
    assert best.variance <= 1.2 * poisson
    assert best.mean <= mean * (1 + 1e-4)


@pytest.mark.parametrize(
    ("last_epoch", "epsilon", "printed"),
    [
        (64, 1.0, 1154.7),
        (170, 1.0, 3046.6),
        pytest.param(256, 1.0, 4581.5, marks=pytest.mark.verify),
        pytest.param(1024, 1.0, 18289, marks=pytest.mark.verify),
        pytest.param(170, 0.25, 40413, marks=pytest.mark.verify),
        pytest.param(170, 0.5, 11060, marks=pytest.mark.verify),
        pytest.param(170, 2.0, 852.9, marks=pytest.mark.verify),
        (170, 4.0, 246.5),
    ],
)
def test_poisson_noise_over_time_matches_the_reference(
    last_epoch: int, epsilon: float, printed: float
) -> None:
    mean = poisson_for_epochs(epsilon, DELTA, last_epoch).mean
    assert mean == pytest.approx(printed, rel=0.001)
    assert_least(lambda scale: epoch_shifts(PoissonNoise(mean * scale), last_epoch), epsilon, DELTA)


@pytest.mark.parametrize(
    ("last_epoch", "shape", "printed", "variance"),
    [
        (64, 40, 213.8, 1357),
        (170, 25, 289.1, 3632),
        (256, 25, 354.1, 5370),
    ],
)
def test_negative_binomial_noise_over_time_matches_the_reference(
    last_epoch: int, shape: int, printed: float, variance: float
) -> None:
    def shifts(noise: NegativeBinomialNoise) -> list[ShiftedCells]:
        return epoch_shifts(noise, last_epoch)

    mean = least_mean(1.0, DELTA, lambda mean: shifts(NegativeBinomialNoise(shape, mean)), printed)
    assert mean == pytest.approx(printed, rel=0.001)
    assert NegativeBinomialNoise(shape, mean).variance == pytest.approx(variance, rel=0.002)
    assert_least(lambda scale: shifts(NegativeBinomialNoise(shape, mean * scale)), 1.0, DELTA)


def test_dummies_over_time_are_fewer_than_in_the_reference() -> None:
    """The reference tried only a few shapes, with up to 1.25 times the Poisson variance."""
    assert negative_binomial_for_epochs(1.0, DELTA, 64).mean < 213.8


# T, k, r: mean and error.
BOOSTED = [
    (64, 4, 2, 3169, 25.0),
    (170, 2, 5, 7469, 25.9),
    (170, 4, 3, 7119, 31.8),
    (256, 2, 6, 10770, 28.6),
    (256, 4, 4, 11244, 35.2),
    (1024, 4, 8, 42182, 49.7),
    (1024, 16, 4, 46752, 72.0),
]


@pytest.mark.parametrize("row", thinned([(row,) for row in BOOSTED], len(BOOSTED)))
def test_noise_of_boosted_reports_matches_the_reference(
    row: tuple[int, int, int, float, float],
) -> None:
    last_epoch, changes, boost, mean, error = row
    reports, noise = best_boost(1.0, DELTA, last_epoch, changes)
    assert reports.boost == boost
    assert noise.mean == pytest.approx(mean, rel=0.002)
    assert reports.error(noise.variance) == pytest.approx(error, abs=0.06)


@pytest.mark.parametrize(("epsilon", "mean", "error"), [(0.25, 95737, 116.5), (4.0, 573, 9.0)])
def test_noise_of_boosted_reports_matches_golden_values_at_other_epsilons(
    epsilon: float, mean: float, error: float
) -> None:
    reports = BoostedReports(170, 4, 3)
    noise = poisson_for_boosted(epsilon, DELTA, reports)
    assert noise.mean == pytest.approx(mean, rel=0.004)
    assert reports.error(noise.variance) == pytest.approx(error, abs=0.06)


def assert_least(
    parts: Callable[[float], Sequence[ShiftedCells]],
    epsilon: float,
    delta: float,
    bracket: float = BRACKET,
) -> None:
    """Check that the cells are private, but not with a mean that is half a percent smaller."""
    upper = max(divergence(each, epsilon, upwards=True) for each in both_ways(parts(1.0)))
    lower = max(divergence(each, epsilon, upwards=False) for each in both_ways(parts(bracket)))
    assert upper <= delta < lower


def both_ways(parts: Sequence[ShiftedCells]) -> list[list[ShiftedCells]]:
    return [
        [ShiftedCells(part.noise, sign * part.shift, part.cells) for part in parts]
        for sign in (1, -1)
    ]


def divergence(parts: Sequence[ShiftedCells], epsilon: float, upwards: bool) -> float:
    """Bound the hockey-stick divergence from above or from below.

    From above, outcomes are split between two grid points as in "Connect the Dots". From below,
    losses are rounded down, and very unlikely outcomes are dropped instead of counting as certain.
    """
    squares = sum(part.cells * part.shift**2 / part.noise.variance for part in parts)
    cells = sum(part.cells for part in parts)
    # Rounding down reduces each loss by half a width: by 3/2,000 of epsilon in total.
    width = math.sqrt(squares / cells) / 120 if upwards else 0.003 * epsilon / cells
    # Half the period covers twelve standard deviations and the maximum excess of an outcome.
    reach = 12 * math.sqrt(squares) + squares + epsilon + 2
    points = 1 << math.ceil(math.log2(2 * reach / width))
    spectrum = np.ones(points // 2 + 1, complex)
    finite = 0.0
    for part in parts:
        single, certain = gridded(part, width, points, upwards)
        finite += part.cells * math.log1p(-certain)
        spectrum *= np.fft.rfft(single) ** part.cells
    masses = np.fft.irfft(spectrum, points)
    losses = width * np.concatenate((np.arange(points // 2), np.arange(-points // 2, 0)))
    above = losses > epsilon
    return -math.expm1(finite) + float(np.dot(masses[above], -np.expm1(epsilon - losses[above])))


def gridded(
    part: ShiftedCells, width: float, points: int, upwards: bool
) -> tuple[NDArray[np.float64], float]:
    counts = np.arange(int(part.noise.mean + 40 * math.sqrt(part.noise.variance) + 60))
    shifted = counts - part.shift
    with np.errstate(invalid="ignore"):
        losses = log_pmf(part.noise, counts) - log_pmf(part.noise, shifted)
    masses = np.exp(log_pmf(part.noise, counts))
    masses /= masses.sum()
    kept = (masses > 1e-22) & (shifted >= 0) & (np.abs(losses) < width * (points // 2 - 1))
    certain = float(masses[~kept if upwards else shifted < 0].sum())
    masses, losses = masses[kept], losses[kept]
    below = np.floor(losses / width)
    up = masses * (np.exp(-below * width) - np.exp(-losses)) / np.exp(-below * width)
    up /= -math.expm1(-width)
    index = below.astype(np.int64)
    grid = np.zeros(points)
    if not upwards:
        grid += np.bincount(index % points, masses, points)
        return grid, certain
    grid += np.bincount(index % points, masses - up, points)
    grid += np.bincount((index + 1) % points, up, points)
    return grid, certain


def log_pmf(noise: CellNoise, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    if isinstance(noise, NegativeBinomialNoise):
        return np.asarray(stats.nbinom.logpmf(counts, noise.shape, noise.success))
    return np.asarray(stats.poisson.logpmf(counts, noise.mean))


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
def test_shifts_in_mixed_directions_cost_no_more_than_in_one_direction(
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


def test_delta_grows_with_the_number_of_cells_and_shrinks_with_noise() -> None:
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


def test_target_that_no_amount_of_noise_reaches_is_rejected() -> None:
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
