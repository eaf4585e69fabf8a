"""Test memoized responses: the claim for an unchanged value, and the loss of changing streams."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.randomness import seeded_generator
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


def test_first_report_loses_the_requested_fraction_of_the_permanent_loss() -> None:
    for parameters in PARAMETERS:
        law = calibrate(parameters, 3)
        wanted = parameters.first_share * law.permanent.loss
        assert loss_of_report(law) == pytest.approx(wanted, rel=1e-12)
        assert calibrate(parameters, 1).stream_loss == pytest.approx(wanted)


def test_loss_is_finite_for_long_streams_and_extreme_parameters() -> None:
    for epsilon, share in ((64.0, 0.99), (1e-6, 0.01), (64.0, 0.01), (1e-6, 0.99)):
        for last_epoch in (1, 2, 1 << 20):
            parameters = MemoizedResponseParameters(epsilon, share, "full")
            law = calibrate(parameters, last_epoch)
            assert 0 < law.stream_loss < math.inf


def test_device_always_reports_its_memoized_responses() -> None:
    """With almost no instantaneous noise, the reports are the permanent responses."""
    certain = ComposedLaw((1 << 200, 1))
    law = MemoizedResponseLaw(6, 1.0, ComposedLaw((2, 1)), certain)
    devices = MemoizedResponse(law)
    rng = seeded_generator(3)
    devices.enroll(3000, rng)
    memo = devices.state_arrays()["memo"]
    first = [devices.report(epoch, np.full(3000, epoch % 2), None, rng) for epoch in (1, 2)]
    again = [devices.report(epoch, np.full(3000, epoch % 2), None, rng) for epoch in (3, 4)]
    for one, other, value in zip(first, again, (1, 0), strict=True):
        assert np.array_equal(one, other)
        assert np.array_equal(one[:, 0], memo[:, value])
        assert abs((one[:, 0] == value).mean() - 2 / 3) < 7 * math.sqrt(2 / 9 / 3000)


def test_invalid_parameters_constants_and_states_are_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"first_share is 1.0; expected a number from 0.01 to 0.99"
    ):
        MemoizedResponseParameters(1.0, 1.0)
    for last_epoch in (0, (1 << 20) + 1):
        with pytest.raises(ValueError, match=f"{last_epoch} epochs; expected 1 to 1048576"):
            calibrate(PARAMETERS[0], last_epoch)
    fair, good = ComposedLaw((1, 1)), ComposedLaw((2, 1))
    with pytest.raises(
        ValueError,
        match=("the instantaneous response is reversed with probability 1/2 or more"),
    ):
        MemoizedResponseLaw(1, 1.0, good, fair)
    with pytest.raises(ValueError, match=r"permanent responses have a loss of 0\.69"):
        MemoizedResponseLaw(1, 0.5, good, good)
    with pytest.raises(ValueError, match="permanent has 2 signs; expected 1"):
        MemoizedResponseLaw(1, 1.0, ComposedLaw((3, 2, 1)), good)
    law = calibrate(PARAMETERS[0], 2)
    with pytest.raises(ValueError, match="invalid constants for memoized_response"):
        MemoizedResponseLaw.from_json({"last_epoch": 2})
    with pytest.raises(ValueError, match=r"memo is uint8 of shape \(2, 3\)"):
        MemoizedResponse.restore(law, {"memo": np.zeros((2, 3), np.uint8)}, 0)
    with pytest.raises(ValueError, match="has a value out of range; expected 0 to"):
        MemoizedResponse.restore(law, {"memo": np.full((2, 2), 2, np.uint8)}, 0)


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
