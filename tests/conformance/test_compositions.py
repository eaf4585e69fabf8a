"""Check losses that experiments compose, by enumerating all outcomes of small mechanisms."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest

from dpstream.pipeline.audit.recomputed.small_laws import excess, repeated
from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.composed import ComposedLaw
from experiments.protocols.fragments import FragmentsParameters
from experiments.protocols.fragments.calibration import calibrate
from experiments.protocols.measurements.calibration import composed_loss
from experiments.protocols.permanent_loss import stream_loss, unchanged_loss


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


def weights_of(permanent: ComposedLaw, report: ComposedLaw, stream: tuple[int, ...]) -> list[int]:
    """Return the weight of each sequence of reports, over all permanent answers."""
    weights = dict.fromkeys(product((0, 1), repeat=len(stream)), 0)
    for answers in product((0, 1), repeat=2):
        drawn = math.prod(permanent.weights[bit != answer] for bit, answer in enumerate(answers))
        for seen in weights:
            weights[seen] += drawn * math.prod(
                report.weights[sent != answers[value]]
                for sent, value in zip(seen, stream, strict=True)
            )
    return list(weights.values())


@pytest.mark.parametrize(("permanent", "report"), [(20, 5), (3, 30)])
@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
@pytest.mark.parametrize("bits", [1, 2])
def test_stated_loss_covers_all_reports_of_permanent_answers(
    permanent: int, report: int, epochs: int, bits: int
) -> None:
    laws = ComposedLaw((permanent, 1)), ComposedLaw((report, 1))
    weights = {each: weights_of(*laws, each) for each in product((0, 1), repeat=epochs)}
    still = largest(weights[(0,) * epochs], weights[(1,) * epochs])
    assert exponential(unchanged_loss(*laws, epochs, bits), rounded_up=True) >= still**bits
    whole = max(largest(one, other) for one in weights.values() for other in weights.values())
    assert exponential(stream_loss(*laws, epochs, bits), rounded_up=True) >= whole**bits


def largest(one: list[int], other: list[int]) -> Fraction:
    return max(max(Fraction(a, b), Fraction(b, a)) for a, b in zip(one, other, strict=True))


def test_permanent_answers_are_rounded_toward_more_noise() -> None:
    law = calibrate(FragmentsParameters(1.0, 1e-3, tuple("abc"), permanent=True), 2, 300)
    assert law.backstop is not None
    assert Fraction(*law.backstop.weights) <= Fraction(*law.odds.weights)
