"""Check losses that experiments compose, by enumerating all outcomes of small mechanisms."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpstream.pipeline.audit.recomputed.small_laws import excess, repeated
from experiments.protocols.measurements.calibration import composed_loss


@pytest.mark.parametrize("odds", [Fraction(21, 20), Fraction(101, 100)], ids=str)
@pytest.mark.parametrize("times", [3, 100, 400])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 1e-10])
def test_advanced_composition_covers_randomized_responses(
    odds: Fraction, times: int, delta: float
) -> None:
    """Randomized response has the largest loss of all mechanisms with these odds."""
    response = [(odds.numerator, odds.denominator), (odds.denominator, odds.numerator)]
    seen = list(repeated(response, times))
    epsilon, needed = composed_loss(times, odds, delta)
    assert Fraction(needed) >= excess(seen, epsilon, sum(weight for weight, _ in seen))
