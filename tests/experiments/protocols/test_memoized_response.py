"""Test memoized responses: the claim for an unchanged value, and the loss of changing streams."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from experiments.protocols.baselines import (
    MemoizedResponse,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
)
from experiments.protocols.baselines.calibration import calibrate

PARAMETERS = [
    MemoizedResponseParameters(1.0),
    MemoizedResponseParameters(1.0, calibration="full"),
    MemoizedResponseParameters(6.0, 0.05, "full"),
    MemoizedResponseParameters(3.0, 0.9),
    MemoizedResponseParameters(0.01, 0.5),
]


def test_one_change_in_ten_epochs_costs_over_four_times_the_claimed_loss() -> None:
    """By RAPPOR's conventions a bit gets half of epsilon, and its first report half of that.

    Of the worst pair of streams, one has a single change and the other has none.
    """
    law = calibrate(MemoizedResponseParameters(epsilon=1), last_epoch=10)
    guarantee = MemoizedResponse(law).guarantee
    assert (guarantee.unit, guarantee.epsilon) == ("value", 1.0)
    assert guarantee.stream_epsilon is not None
    assert round(guarantee.stream_epsilon, 2) == 4.65
    assert "epsilon 1 for a user's value, if it never changes, and epsilon 4.65304 for" in str(
        guarantee
    )
    assert "a user withdrawn while the value is 1 changes it to 0" in guarantee.neighbors
    assert (law.permanent.loss, round(loss_of_report(law), 12)) == (0.5, 0.25)
    changed, constant = (0,) * 5 + (1,) * 5, (0,) * 10
    ratio = probability(law, changed, changed) / probability(law, constant, changed)
    assert math.log(ratio) == pytest.approx(guarantee.stream_epsilon, abs=1e-12)


@pytest.mark.parametrize(("last_epoch", "lost"), [(10, 5.509), (64, 37.374), (256, 150.680)])
def test_full_calibration_has_the_expected_stream_loss(last_epoch: int, lost: float) -> None:
    law = calibrate(MemoizedResponseParameters(1.0, calibration="full"), last_epoch)
    assert law.permanent.loss == law.epsilon
    assert law.stream_loss == pytest.approx(lost, abs=6e-4)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("last_epoch", [1, 2, 3, 4, 5, 6])
def test_stream_loss_is_that_of_the_worst_pair_of_streams(
    parameters: MemoizedResponseParameters, last_epoch: int
) -> None:
    """Enumerate all streams and reports in exact arithmetic; one change attains the worst loss."""
    law = calibrate(parameters, last_epoch)
    streams = list(product((0, 1), repeat=last_epoch))
    hardly = [stream for stream in streams if int(np.abs(np.diff(stream)).sum()) <= 1]
    for few in (streams, hardly):
        worst = max(largest(law, few, sent) for sent in streams)
        stated = Decimal(law.stream_loss)
        with localcontext() as context:
            context.prec = 60
            exact = (Decimal(worst.numerator) / worst.denominator).ln()
            assert exact <= stated
            assert float(exact) == pytest.approx(law.stream_loss, rel=1e-15)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_unchanged_value_loses_at_most_the_claimed_epsilon(
    parameters: MemoizedResponseParameters,
) -> None:
    """Any number of reports reveals at most the permanent response."""
    for last_epoch in (1, 10, 1000):
        law = calibrate(parameters, last_epoch)
        kept = float(law.permanent.probability(0))
        # All ones are the most revealing reports.
        most = law.instantaneous.loss * last_epoch
        ratio = (kept + (1 - kept) * math.exp(-most)) / (kept * math.exp(-most) + 1 - kept)
        assert math.log(ratio) <= law.epsilon + 1e-12
    share = 1 if parameters.calibration == "full" else 0.5
    assert math.log(ratio) <= share * parameters.epsilon + 1e-12
    assert law.permanent.loss == share * parameters.epsilon


def loss_of_report(law: MemoizedResponseLaw) -> float:
    return 2 * math.atanh(law.c_gap)


def probability(law: MemoizedResponseLaw, stream: tuple[int, ...], sent: tuple[int, ...]) -> int:
    """Return the integer weight of reports, summed over the four pairs of permanent responses."""
    return sum(
        prod(law.permanent.weights[reversed_] for reversed_ in reversals)
        * prod(
            law.instantaneous.weights[value ^ reversals[value] ^ report]
            for value, report in zip(stream, sent, strict=True)
        )
        for reversals in product((0, 1), repeat=2)
    )


def largest(
    law: MemoizedResponseLaw, streams: list[tuple[int, ...]], sent: tuple[int, ...]
) -> Fraction:
    weights = [probability(law, stream, sent) for stream in streams]
    return Fraction(max(weights), min(weights))
