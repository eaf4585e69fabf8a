"""Test counts of bits, epoch by epoch, and the device counts they estimate."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.aggregators.estimate import Participation
from dpstream.randomizers.composed import ComposedLaw
from experiments.protocols.baselines import SplitBudgetParameters
from experiments.protocols.baselines.calibration import calibrate
from experiments.protocols.fragments import FragmentsLaw
from experiments.protocols.fragments.aggregator import FragmentsAggregator

LAW = calibrate(SplitBudgetParameters(3 * math.log(3)), last_epoch=3)
EVERYBODY = Participation.constant(3, 100)


def counted(epoch: int, zeros: int, ones: int) -> EpochResponsesAggregator:
    aggregator = EpochResponsesAggregator(LAW)
    counts = np.array([zeros, ones], np.uint32)
    aggregator.add(epoch, np.array([[0], [1]], np.uint8), counts)
    return aggregator


def test_epoch_is_estimated_from_its_own_reports() -> None:
    """c_gap is 1/2: ones make up 1/4 to 3/4 of reports if 0 to 100 % have the value 1."""
    assert LAW.c_gap == pytest.approx(0.5, rel=1e-15)
    for ones, value in ((25, 0), (50, 50), (75, 100), (90, 130)):
        estimate = counted(2, 100 - ones, ones).estimate(2, EVERYBODY)
        assert estimate is not None
        assert estimate.value == pytest.approx(value)
        assert estimate.standard_error == pytest.approx(math.sqrt(100 * 3 / 4))
        assert (estimate.reports, estimate.population, estimate.flags) == (100, 100, ())


def test_epoch_without_reports_has_no_estimate() -> None:
    aggregator = counted(2, 40, 60)
    assert aggregator.estimate(1, EVERYBODY) is None
    assert aggregator.estimate(3, EVERYBODY) is None


def test_response_variance_matches_enumeration_of_all_outcomes() -> None:
    """Three of five devices report; two of the five have the value 1."""
    chance = {True: 0.75, False: 0.25}
    first = second = 0.0
    for choice, reports in product(combinations(range(5), 3), product((0, 1), repeat=3)):
        values = [int(device < 2) for device in choice]
        probability = math.prod(
            chance[value == report] for value, report in zip(values, reports, strict=True)
        ) / math.comb(5, 3)
        value = 5 * (2 * sum(reports) / 3 - 0.5)
        first, second = first + probability * value, second + probability * value**2
    assert first == pytest.approx(2)
    expected = 25 * ((LAW.c_gap**-2 - 1) / 12 + 0.4 * 0.6 * 2 / (3 * 4))
    assert second - first**2 == pytest.approx(expected)
    # With few reports the fraction is taken as 1/2, the conservative choice.
    estimate = counted(1, 2, 1).estimate(1, Participation.constant(3, 5))
    assert estimate is not None
    assert estimate.standard_error == pytest.approx(
        math.sqrt(expected + 25 * (0.25 - 0.24) * 2 / 12)
    )


def test_estimates_are_negative_if_contributors_sent_no_messages() -> None:
    """Contributors without items might send nothing: estimates are then rightly below 0."""
    law = FragmentsLaw(
        2, 3, 1, 1, 5, "replacement", "exact", ComposedLaw((3, 1)), None, 1.0, 0.1, 1.0
    )
    aggregator = FragmentsAggregator(law)
    estimates = aggregator.estimate(1, Participation.constant(2, 5))
    assert estimates is not None
    assert estimates.values.tolist() == [-2.5] * 3
    assert aggregator.estimate(1, Participation.constant(2, 4)) is None
