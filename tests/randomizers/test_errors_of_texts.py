"""Where "Encode, Shuffle, Analyze Privacy Revisited" does not say what is true, with numbers.

What is built follows the corrected formulas. (That Theorem IV.2 and the formula for the published
odds are among these is shown in `test_fragments`.)
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.fragments.calibration import published_epsilon

GAUSSIANS = [
    # Central epsilon, delta, and sigma as Tables IV, VIII and IX have it.
    *((eps, 5e-8, s) for eps, s in ((0.05, 80.42), (0.25, 16.18), (0.5, 8.15), (1, 4.14))),
    *((eps, 5e-10, s) for eps, s in ((0.05, 91.16), (0.25, 18.32), (0.5, 9.21), (1, 4.66))),
    *((eps, 5e-9, s) for eps, s in ((0.05, 85.95), (0.25, 17.28), (0.5, 8.70), (1, 4.41))),
]


@pytest.mark.parametrize(("epsilon", "delta", "printed"), GAUSSIANS)
def test_the_gaussian_baseline_is_less_private_than_it_says(
    epsilon: float, delta: float, printed: float
) -> None:
    """Its sigma follows from a formula that is short of the exact one."""
    log = math.log(1 / (2 * delta))
    formula = (math.sqrt(log) + math.sqrt(log + 2 * epsilon)) / (2 * epsilon)
    assert formula == pytest.approx(printed, abs=0.01)
    assert gaussian_delta(printed, epsilon) > 1.5 * delta


@pytest.mark.parametrize(
    ("delta", "printed", "needed", "spent"), [(5e-10, 4.66, 5.61, 1.1e-7), (5e-8, 4.14, 4.81, None)]
)
def test_at_epsilon_1_a_private_gaussian_is_larger(
    delta: float, printed: float, needed: float, spent: float | None
) -> None:
    assert gaussian_delta(needed + 0.005, 1.0) < delta < gaussian_delta(needed - 0.005, 1.0)
    if spent is not None:
        assert gaussian_delta(printed, 1.0) == pytest.approx(spent, rel=0.05)


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Exact, for sensitivity 1 (Balle and Wang 2018)."""
    below = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
    above = stats.norm.cdf(-0.5 / sigma - epsilon * sigma)
    return float(below - math.exp(epsilon) * above)


@pytest.mark.parametrize(
    ("contributors", "delta", "published", "at_2"),
    [
        (236_559_063, 5e-10, 0.0011, 0.0027),
        (1_914_589, 5e-8, 0.0111, 0.0274),
        (50_409_435, 5e-9, 0.0023, 0.0056),
        (203_950_512, 5e-10, 0.0012, 0.0030),
    ],
)
def test_the_first_row_of_table_iii_has_messages_of_one_epsilon_and_privacy_of_another(
    contributors: int, delta: float, published: float, at_2: float
) -> None:
    """A local epsilon of 2 gives the third column; what is printed needs one of 1."""

    def central(loss: float) -> float:
        mean = 2 * contributors / (1 + math.exp(loss))
        return published_epsilon(mean, delta, contributors)

    assert central(2.0) == pytest.approx(at_2, abs=6e-5)
    assert central(1.0) == pytest.approx(published, abs=6e-5)


def test_the_constant_of_ldp_sgd_lacks_the_dimension() -> None:
    """E[sgn<z, v> v] is a multiple of z, and its inverse is what a mean has to be scaled by."""
    dimension, drawn = 10, 400_000
    rng = np.random.default_rng(1)
    directions = rng.standard_normal((drawn, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    seen = np.abs(directions[:, 0])
    ratio = math.gamma((dimension + 1) / 2) / math.gamma(dimension / 2 + 1)
    printed = math.sqrt(math.pi) / 2 * ratio
    assert printed == pytest.approx(0.38656, abs=1e-5)
    deviation = float(seen.std() / math.sqrt(drawn))
    assert abs(float(seen.mean()) - 1 / (dimension * printed)) < 7 * deviation
    assert abs(float(seen.mean()) - 0.25869) < 7 * deviation


def test_steps_of_ldp_sgd_have_to_become_shorter() -> None:
    """Algorithm 5 has steps of |C| / G; Theorem .4, which it rests on, divides them by sqrt(t).

    Of |x| between -1 and 1 all gradients are -1 or 1, and |C| = 2.
    """

    def last(steps: int, power: float) -> float:
        place = 1.0
        for step in range(1, steps + 1):
            place = max(-1.0, min(1.0, place - 2 / step**power * math.copysign(1, place)))
        return abs(place)

    steps = 10_000
    promised = 4 * (2 + math.log(steps)) / math.sqrt(steps)
    assert last(steps, 0.0) == 1.0 > promised
    assert last(steps, 0.5) < promised
