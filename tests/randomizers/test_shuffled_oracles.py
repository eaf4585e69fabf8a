"""Test noise of frequency oracles with rows: calibration, and the rule of the paper."""

from __future__ import annotations

import pytest

from dpstream.randomizers.accounting.cell_noise import BinomialNoise
from dpstream.randomizers.accounting.shifted_noise import delta_spent
from dpstream.randomizers.accounting.shuffled_oracles import (
    binomial_for_rows,
    poisson_for_rows,
    published_mean,
    published_probability,
    row_shifts,
)

pytestmark = pytest.mark.slow


def test_numbers_of_rows_and_items_and_epochs_have_the_same_effect_on_noise() -> None:
    means = {
        poisson_for_rows(1.0, 1e-6, rows, items, epochs).mean
        for rows, items, epochs in ((12, 1, 1), (1, 12, 1), (1, 1, 12), (3, 2, 2))
    }
    assert len(means) == 1


def test_binomial_noise_has_about_the_variance_of_poisson_noise() -> None:
    poisson = poisson_for_rows(1.0, 1e-6, rows=5)
    for contributors in (1000, 20_000, 10**6):
        noise = binomial_for_rows(1.0, 1e-6, contributors, rows=5)
        assert delta_spent(row_shifts(noise, 5), 1.0) <= 1e-6
        assert delta_spent(row_shifts(shrunk(noise), 5), 1.0) > 1e-6
        assert noise.variance == pytest.approx(poisson.mean, rel=0.06)
    assert noise.mean == pytest.approx(poisson.mean, rel=1e-3)


def shrunk(noise: BinomialNoise) -> BinomialNoise:
    return BinomialNoise(noise.contributors, noise.probability * 0.999)


def test_error_for_too_few_contributors_states_the_required_number() -> None:
    with pytest.raises(ValueError, match="got 500 contributors; expected at least about 722"):
        binomial_for_rows(1.0, 1e-6, 500, rows=5)
    assert binomial_for_rows(1.0, 1e-6, 722, rows=5).probability < 0.5


@pytest.mark.parametrize(("rows", "printed"), [(1, 1306), (5, 36266), (10, 151301), (20, 630158)])
def test_mean_noise_matches_the_table_in_the_paper(rows: int, printed: int) -> None:
    assert round(published_mean(1.0, 1e-6, rows)) == printed


def test_error_for_too_few_users_states_the_number_the_paper_requires() -> None:
    with pytest.raises(ValueError, match="expected at least 36266"):
        published_probability(1.0, 1e-6, 36_265, rows=5)
    assert published_probability(1.0, 1e-6, 36_266, rows=5) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "items", "epochs"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1.5, 1, 1)]
)
def test_numbers_of_rows_or_items_or_epochs_below_1_are_rejected(
    rows: int, items: int, epochs: int
) -> None:
    with pytest.raises(ValueError, match="expected a positive integer"):
        poisson_for_rows(1.0, 1e-6, rows, items, epochs)
