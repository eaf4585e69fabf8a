from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import dpstream.randomizers.composed
from dpstream.randomizers.accounting.calibration import optimal, published
from dpstream.randomizers.composed import MAX_SIGNS, ComposedLaw, log_rounded_up
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10


def test_c_gap_equals_the_advantage_of_every_sign() -> None:
    law = ComposedLaw((7, 3, 2, 1))
    for position in range(3):
        advantage = sum(
            law.probability(signs.count(-1)) * signs[position]
            for signs in product((1, -1), repeat=3)
        )
        assert advantage == law.exact_c_gap
    assert sum(law.probability(signs.count(-1)) for signs in product((1, -1), repeat=3)) == 1


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_every_subset_of_differing_signs_is_equally_likely(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = np.array(list(product(*(range(choices) for choices in range(k, 0, -1)))))

    class Enumerated:
        def integers(self, low: int, high: int, size: int, dtype: object) -> NDArray[np.int64]:
            assert low == 0
            assert size == len(outcomes)
            return outcomes[:, k - high]

    for distance in range(k + 1):
        distances = np.full(len(outcomes), distance)
        monkeypatch.setattr(
            dpstream.randomizers.composed, "draw_categories", lambda *_, drawn=distances: drawn
        )
        signs = ComposedLaw((1,) * (k + 1)).sample(
            len(outcomes), cast(np.random.Generator, Enumerated())
        )
        vectors, counts = np.unique(signs, axis=0, return_counts=True)
        assert len(vectors) == math.comb(k, distance)
        assert set(counts.tolist()) == {len(outcomes) // len(vectors)}
        assert ((vectors == -1).sum(axis=1) == distance).all()


def test_samples_follow_the_distribution() -> None:
    law = ComposedLaw((9, 4, 2, 3))
    signs = law.sample(200_000, seeded_generator(1))
    assert signs.dtype == np.int8
    observed = np.bincount((signs < 0) @ [4, 2, 1], minlength=8)

    def fit(other: ComposedLaw) -> float:
        expected = [float(other.probability(code.bit_count())) for code in range(8)]
        return float(stats.chisquare(observed, np.array(expected) * len(signs)).pvalue)

    assert fit(law) > FALSE_ALARM
    assert fit(ComposedLaw((90, 40, 20, 33))) < FALSE_ALARM


@pytest.mark.parametrize("law", [optimal(4, 1.0), optimal(300, 2.0), published(4, 4.0)])
def test_every_sampled_sign_has_the_same_advantage(law: ComposedLaw) -> None:
    count = 2_000_000 // law.k
    kept = (law.sample(count, seeded_generator(2, law.k)) > 0).sum(axis=0)
    for scale, fits in ((1.0, True), (0.7, False), (1.3, False)):
        # The sum over positions has the power to detect wrong advantages. Below, each is tested.
        probability = (1 + scale * law.c_gap) / 2
        pooled = stats.norm.sf(
            abs(kept.sum() - count * law.k * probability) / math.sqrt(count * _variance(law))
        )
        assert (2 * pooled > FALSE_ALARM) == fits
    each = [stats.binomtest(int(n), count, (1 + law.c_gap) / 2).pvalue for n in kept]
    assert min(each) > FALSE_ALARM / law.k


def test_outcomes_with_tiny_probabilities_can_be_sampled() -> None:
    law = optimal(1024, 1.0)
    assert law.probability(0) < Fraction(1, 2**1000)
    assert law.sample(3, seeded_generator(3)).shape == (3, 1024)


@pytest.mark.parametrize(
    "ratio",
    [
        Fraction(1),
        Fraction(2),
        Fraction(3, 2),
        Fraction(10**30 + 1, 10**30),
        Fraction(10**27),
        Fraction(math.floor(math.e * 2**80), 2**80),
    ],
)
def test_loss_is_rounded_up_to_the_next_float(
    ratio: Fraction, exponential_below: Callable[[float], Fraction]
) -> None:
    loss = log_rounded_up(ratio)
    assert ratio == 1 or exponential_below(loss) >= ratio
    assert loss == 0 or exponential_below(math.nextafter(loss, 0)) < ratio


def test_json_with_too_many_signs_is_rejected() -> None:
    most = ComposedLaw((3,) * MAX_SIGNS + (1,))
    assert ComposedLaw.from_json(most.to_json()) == most
    with pytest.raises(ValueError, match=rf"at most {MAX_SIGNS + 1} in total"):
        ComposedLaw.from_json({"weights": [[MAX_SIGNS + 1, "3"], [1, "1"]]})


@pytest.mark.parametrize("weights", [(), (1,), (1, 0), (1, -1), (1, 1.0), (True, 1)])
def test_weights_must_be_positive_integers(weights: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="weight"):
        ComposedLaw(weights)


def _variance(law: ComposedLaw) -> float:
    total = sum(law.masses)
    mean = Fraction(sum(d * mass for d, mass in enumerate(law.masses)), total)
    square = Fraction(sum(d * d * mass for d, mass in enumerate(law.masses)), total)
    return float(square - mean**2)
