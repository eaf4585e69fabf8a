"""Test dummies of any number of contributors against their exact distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.dummies import (
    REDRAW_PROBABILITY,
    BernoulliDummies,
    ClusteredDummies,
    Dummies,
    PoissonDummies,
)
from dpstream.randomizers.randomness import seeded_generator
from tests.support.chi_square import fit
from tests.support.thinned import thinned

FALSE_ALARM = 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("contributors", thinned([1, 2, 7, 1000, 123_457], 2))
@pytest.mark.parametrize("rate", thinned([1e-6, 1e-3, 0.7, 12.5, 1e3, 1e5], 2))
def test_dummy_total_is_poisson_for_any_contributor_count(rate: float, contributors: int) -> None:
    dummies, rng = PoissonDummies(rate), seeded_generator(1, contributors)
    runs = 3_000 if rate * contributors < 1e6 else 300
    totals = np.array([dummies.total(contributors, rng) for _ in range(runs)])
    mean = rate * contributors
    assert fit(totals, stats.poisson(mean).cdf) > FALSE_ALARM
    if runs * mean > 300:
        assert fit(totals, stats.poisson(mean / 2).cdf) < FALSE_ALARM
    assert dummies.distance(contributors) < 1e-20


@pytest.mark.parametrize(
    ("dummies", "variance"),
    [
        (PoissonDummies(100.0), 100),
        (ClusteredDummies(10, 40.0, 10.0), 125),
        (BernoulliDummies(400, 0.25), 75),
    ],
    ids=["poisson", "negative_binomial", "bernoulli"],
)
def test_every_contributor_adds_dummies_to_the_total(dummies: Dummies, variance: float) -> None:
    cells, runs, rng = getattr(dummies, "cells", 10), 50, seeded_generator(9)
    for contributors in (1, 2, 3, 6, 7, 16, 17):
        deviation = math.sqrt(variance * contributors / runs)
        drawn = [len(dummies.draw(contributors, cells, rng)) for _ in range(runs)]
        counted = [int(dummies.counts(contributors, cells, rng).sum()) for _ in range(runs)]
        for totals in (drawn, counted):
            assert abs(np.mean(totals) - 100 * contributors) < 7 * deviation < 50


def windows(
    dummies: Dummies, contributors: int, cells: int, runs: int, *, counted: bool, key: int
) -> NDArray[np.int64]:
    """Draw counts of cells, shape (runs, cells)."""
    rng = seeded_generator(4, key)
    if counted:
        return np.stack([dummies.counts(contributors, cells, rng) for _ in range(runs)])
    drawn = (dummies.draw(contributors, cells, rng) for _ in range(runs))
    return np.stack([np.bincount(words, minlength=cells) for words in drawn])


@pytest.mark.slow
@pytest.mark.parametrize("counted", [False, True], ids=["words", "counts"])
@pytest.mark.parametrize(
    ("noise", "contributors"),
    thinned(
        [
            (CellNoiseLaw("poisson", 6.0, 20), 43),
            (CellNoiseLaw("poisson", 6.0, 20), 20),
            (CellNoiseLaw("poisson", 300.0, 1), 5),
            (CellNoiseLaw("bernoulli", 6.0, 20), 43),
            (CellNoiseLaw("bernoulli", 6.0, 20), 20),
            (CellNoiseLaw("negative_binomial", 6.0, 20, 2.5), 20),
            (CellNoiseLaw("negative_binomial", 6.0, 20, 2.5), 43),
            (CellNoiseLaw("negative_binomial", 6.0, 1, 2.5), 3),
        ]
    ),
    ids=str,
)
def test_dummies_of_cells_are_independent_and_follow_the_distribution(
    noise: CellNoiseLaw, contributors: int, counted: bool
) -> None:
    cells, runs = 5, 6_000
    dummies = noise.of_contributors(cells)
    assert dummies is not None
    counts = windows(dummies, contributors, cells, runs, counted=counted, key=contributors)
    mean, variance = noise.moments(contributors)
    share = contributors / noise.minimum
    laws = {
        "poisson": stats.poisson(mean),
        "bernoulli": stats.binom(contributors, noise.mean / noise.minimum),
        "negative_binomial": stats.nbinom(
            (noise.shape or 1) * share, 1 / (1 + noise.mean / (noise.shape or 1))
        ),
    }
    law = laws[noise.dummies]
    assert (mean, variance) == pytest.approx((law.mean(), law.var()))
    for column in counts.T:
        assert fit(column, law.cdf) > FALSE_ALARM
        assert fit(2 * column, law.cdf) < FALSE_ALARM
        assert fit(column // 2, law.cdf) < FALSE_ALARM
    correlation = np.corrcoef(counts, rowvar=False) - np.eye(cells)
    assert np.abs(correlation).max() < 7.5 / math.sqrt(runs)
    # The test would detect identical dummies in neighboring cells.
    mixed = counts + np.roll(counts, 1, axis=1)
    assert np.abs(np.corrcoef(mixed, rowvar=False) - np.eye(cells)).max() > 7.5 / math.sqrt(runs)


@pytest.mark.slow
def test_bernoulli_dummies_are_distinct_and_uniform() -> None:
    cells, probability, runs = 4, 0.4, 20_000
    dummies, rng = BernoulliDummies(cells, probability), seeded_generator(5)
    subsets = np.zeros(1 << cells, np.int64)
    for _ in range(runs):
        words = dummies.draw(1, cells, rng)
        assert len(set(words.tolist())) == len(words)
        subsets[sum(1 << int(word) for word in words)] += 1
    sizes = np.array([subset.bit_count() for subset in range(1 << cells)])
    expected = runs * probability**sizes * (1 - probability) ** (cells - sizes)
    assert stats.chisquare(subsets, expected).pvalue > FALSE_ALARM
    moved = np.array([subsets[subset ^ 1] for subset in range(1 << cells)])
    assert stats.chisquare(moved, expected).pvalue < FALSE_ALARM


def test_bernoulli_dummies_fill_nearly_all_cells_at_high_probability() -> None:
    counts = BernoulliDummies(64, 0.98).counts(200, 64, seeded_generator(6))
    assert 180 < counts.min() <= counts.max() <= 200


def test_mean_noise_of_a_window_is_never_rounded_down() -> None:
    for mean, minimum, cells in ((42.7, 1000, 40_960), (1e-3, 999_983, 7), (180.3, 3, 10)):
        for law in (
            CellNoiseLaw("poisson", mean, minimum),
            CellNoiseLaw("negative_binomial", mean, minimum, mean / 2),
        ):
            assert law.per_contributor(cells) * minimum / cells >= mean
            assert law.per_contributor(cells) * minimum / cells == pytest.approx(mean, rel=1e-14)
        stage = CellNoiseLaw("shuffle", mean, minimum).of_stage(cells)
        assert stage is not None
        assert stage.mean >= mean * cells


@pytest.mark.verify
def test_single_contributor_can_draw_clusters_for_many_cells() -> None:
    dummies = ClusteredDummies(1 << 20, 26.0, 93.0)
    drawn = dummies.counts(1, 1 << 20, seeded_generator(7))
    assert drawn.mean() == pytest.approx(93.0, rel=0.01)


@pytest.mark.parametrize("dummies", [ClusteredDummies(4, 1.0, 2.0), BernoulliDummies(4, 0.5)])
def test_draw_rejects_a_different_number_of_cells(dummies: Dummies) -> None:
    with pytest.raises(ValueError, match="'cells' is 5; expected 4"):
        dummies.draw(1, 5, seeded_generator(8))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gauss", 1.0, 1), "'dummies' is 'gauss'; expected one of"),
        (("poisson", 0.0, 1), "'mean' is 0.0; expected a positive finite number"),
        (("poisson", math.nan, 1), "'mean' is nan; expected a positive finite number"),
        (("poisson", 1.0, 0), "'minimum' is 0; expected an integer"),
        (("poisson", 1.0, 2.0), "'minimum' is 2.0; expected an integer"),
        (("poisson", 1.0, 1, 2.0), "'shape' is 2.0 with poisson dummies"),
        (("negative_binomial", 1.0, 1), "'shape' is None with negative_binomial"),
        (("bernoulli", 3.0, 3), "expected less than 'minimum', 3, with"),
        (("bernoulli", 6.0, 3), "expected less than 'minimum', 3, with"),
    ],
)
def test_invalid_noise_is_rejected(arguments: tuple[object, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CellNoiseLaw(*arguments)  # type: ignore[arg-type]


LAWS: list[tuple[Dummies, Callable[[int], Any]]] = [
    (PoissonDummies(1e-6), lambda n: stats.poisson(1e-6 * n)),
    (PoissonDummies(0.04), lambda n: stats.poisson(0.04 * n)),
    (PoissonDummies(7.0), lambda n: stats.poisson(7.0 * n)),
    (PoissonDummies(300.0), lambda n: stats.poisson(300.0 * n)),
    (ClusteredDummies(10, 0.02, 0.05), lambda n: stats.nbinom(0.2 * n, 0.02 / 0.07)),
    (ClusteredDummies(3, 2.5, 40.0), lambda n: stats.nbinom(7.5 * n, 2.5 / 42.5)),
    (BernoulliDummies(50, 0.03), lambda n: stats.binom(50 * n, 0.03)),
    (BernoulliDummies(8, 0.9), lambda n: stats.binom(8 * n, 0.9)),
]


@pytest.mark.parametrize("contributors", [1, 3, 1000, 1_000_000])
@pytest.mark.parametrize(("dummies", "law"), LAWS)
def test_dummies_exceed_capacity_with_at_most_the_stated_probability(
    dummies: Dummies, law: Callable[[int], Any], contributors: int
) -> None:
    most = dummies.most(contributors)
    total = law(contributors)
    exceeded = total.logsf(most)
    assert exceeded <= math.log(REDRAW_PROBABILITY)
    # The capacity is not wasteful either: the Chernoff bound is only slightly above the truth.
    assert most <= total.mean() + 15 * total.std() + 3600
    if most > dummies.mean * contributors + 60:
        assert total.logsf(0.7 * most + 0.3 * total.mean()) > 1.2 * math.log(REDRAW_PROBABILITY)


def test_capacity_is_zero_without_contributors() -> None:
    assert PoissonDummies(3.0).most(0) == 0


@pytest.mark.parametrize("dummies", [law for law, _ in LAWS[1:]])
def test_dummies_beyond_capacity_are_redrawn(
    dummies: Dummies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a redraw probability of 1/2, no released draw exceeds the capacity."""
    monkeypatch.setattr("dpstream.randomizers.dummies.REDRAW_PROBABILITY", 0.5)
    cells = getattr(dummies, "cells", 10)
    contributors, rng = 40, seeded_generator(5)
    most = dummies.most(contributors)
    drawn = [len(dummies.draw(contributors, cells, rng)) for _ in range(300)]
    tables = [int(dummies.counts(contributors, cells, rng).sum()) for _ in range(300)]
    assert max(drawn) <= most
    assert max(tables) <= most
    assert len(set(drawn)) > 2
