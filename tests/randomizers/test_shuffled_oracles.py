"""Test noise of oracles with rows: its parameters, and the published rule."""

from __future__ import annotations

import math

import pytest

from dpstream.randomizers.accounting.cell_noise import BinomialNoise, PoissonNoise
from dpstream.randomizers.accounting.shifted_noise import delta_spent, epsilon_spent
from dpstream.randomizers.accounting.shuffled_oracles import (
    binomial_for_rows,
    poisson_for_rows,
    published_mean,
    published_probability,
    row_shifts,
)

pytestmark = pytest.mark.slow


def test_rows_items_and_epochs_count_alike() -> None:
    means = {
        poisson_for_rows(1.0, 1e-6, rows, items, epochs).mean
        for rows, items, epochs in ((12, 1, 1), (1, 12, 1), (1, 1, 12), (3, 2, 2))
    }
    assert len(means) == 1


def test_binomial_noise_has_the_variance_that_poisson_noise_would_need() -> None:
    poisson = poisson_for_rows(1.0, 1e-6, rows=5)
    for contributors in (1000, 20_000, 10**6):
        noise = binomial_for_rows(1.0, 1e-6, contributors, rows=5)
        assert delta_spent(row_shifts(noise, 5), 1.0) <= 1e-6
        assert delta_spent(row_shifts(shrunk(noise), 5), 1.0) > 1e-6
        assert noise.variance == pytest.approx(poisson.mean, rel=0.06)
    assert noise.mean == pytest.approx(poisson.mean, rel=1e-3)


def shrunk(noise: BinomialNoise) -> BinomialNoise:
    return BinomialNoise(noise.contributors, noise.probability * 0.999)


def test_too_few_contributors_error_states_the_required_number() -> None:
    with pytest.raises(ValueError, match=r"500 contributors are too few .* expected about 722"):
        binomial_for_rows(1.0, 1e-6, 500, rows=5)
    assert binomial_for_rows(1.0, 1e-6, 722, rows=5).probability < 0.5


@pytest.mark.parametrize(("rows", "printed"), [(1, 1306), (5, 36266), (10, 151301), (20, 630158)])
def test_means_are_those_of_the_published_table(rows: int, printed: int) -> None:
    assert round(published_mean(1.0, 1e-6, rows)) == printed


def test_published_rule_requires_noise_for_many_items() -> None:
    """k <= epsilon gamma n / (6 tau k) binds where epsilon is large."""
    assert published_mean(200.0, 0.5, rows=1, items=50) == 6 * 50 * 50 / 200
    assert published_mean(1.0, 1e-6, 2, 3) == 90 * 36 * math.log(12 / 1e-6)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 2.0])
@pytest.mark.parametrize(("rows", "items"), [(1, 1), (5, 1), (2, 8)])
def test_the_published_rule_is_private_with_much_to_spare(
    epsilon: float, rows: int, items: int
) -> None:
    noise = PoissonNoise(published_mean(epsilon, 1e-6, rows, items))
    assert epsilon_spent(row_shifts(noise, rows, items), 1e-6) < epsilon / 3
    assert noise.mean > 18 * poisson_for_rows(epsilon, 1e-6, rows, items).mean


def test_a_published_probability_above_1_is_rejected_with_the_users_it_takes() -> None:
    with pytest.raises(ValueError, match="needs at least 36266 contributors"):
        published_probability(1.0, 1e-6, 36_265, rows=5)
    assert published_probability(1.0, 1e-6, 36_266, rows=5) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "items", "epochs"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1.5, 1, 1)]
)
def test_numbers_of_cells_must_be_positive(rows: int, items: int, epochs: int) -> None:
    with pytest.raises(ValueError, match="expected a whole number, at least 1"):
        poisson_for_rows(1.0, 1e-6, rows, items, epochs)
