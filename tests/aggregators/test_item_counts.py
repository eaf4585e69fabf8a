"""Test estimates from real windows: unbiased, with the stated error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.fragments import FragmentsAggregator
from dpstream.aggregators.hadamard import HadamardAggregator
from dpstream.aggregators.item_counts import spoken_for_variance
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.fragments import FragmentsLaw
from dpstream.randomizers.hadamard import Blanket, Hadamard, HadamardParameters
from dpstream.randomizers.hadamard.calibration import calibrate as hadamard_calibrate
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.single_message import (
    SingleMessageParameters,
)

USERS, ITEMS = 20_000, 600
LABELS = tuple(map(str, range(ITEMS)))
# The mean square of 600 item errors is within a quarter of its expectation: 6 deviations.
WITHIN = 6 * math.sqrt(2 / ITEMS)


def skewed_sets(slots: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(slots)
    return np.floor(ITEMS * rng.random((USERS, slots)) ** 4).astype(np.int64)


def ground_truth(values: NDArray[np.int64]) -> NDArray[np.int64]:
    held = np.zeros((len(values), ITEMS + 1), np.bool_)
    np.put_along_axis(held, values, True, axis=1)
    counts: NDArray[np.int64] = held[:, 1:].sum(axis=0)
    return counts


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("dummies", ["poisson", "bernoulli"])
def test_hadamard_counts_have_the_stated_standard_error(slots: int, dummies: Blanket) -> None:
    parameters = HadamardParameters(
        1.0,
        1e-6,
        LABELS,
        slots,
        dummies=dummies,
        messages_per_user=slots + 4,
    )
    law = hadamard_calibrate(parameters, 1, USERS)
    values = skewed_sets(slots)
    devices, rng = Hadamard(law), seeded_generator(60, slots)
    devices.enroll(USERS, rng)
    aggregator = HadamardAggregator(law)
    aggregator.add(1, devices.report(1, values, None, rng), None)
    estimates = aggregator.estimate(1, Participation.constant(1, USERS))
    assert estimates is not None
    errors = (estimates.values - ground_truth(values)) / estimates.standard_error
    # A wrong subtraction of the blanket would leave half of it or count it twice.
    assert abs(errors.mean()) < 6 / math.sqrt(ITEMS)
    assert abs(np.square(errors).mean() - 1) < WITHIN
    assert estimates.standard_error < 20 * slots


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("single_message", SingleMessageParameters(2.0, 1e-6, LABELS, 1, "randomized_response")),
        ("single_message", SingleMessageParameters(2.0, 1e-6, LABELS, 1, "rappor")),
        ("single_message", SingleMessageParameters(2.0, 1e-6, LABELS, 3, "rappor")),
        ("projective_geometry", ProjectiveGeometryParameters(0.5, LABELS, 1)),
        ("projective_geometry", ProjectiveGeometryParameters(4.0, LABELS, 1)),
        ("projective_geometry", ProjectiveGeometryParameters(1.0, LABELS, 3)),
    ],
    ids=repr,
)
def test_counts_from_single_reports_have_the_stated_standard_errors(
    name: str, parameters: Any
) -> None:
    entry = PROTOCOLS[name]
    law: Any = entry.calibrate(parameters, 1, USERS)
    values = skewed_sets(parameters.items)
    devices, rng = entry.randomizer(law), seeded_generator(61, parameters.items)
    devices.enroll(USERS, rng)
    aggregator = entry.aggregation.make(law, parameters)
    aggregator.add(1, written_out(devices.report(1, values, None, rng)), None)
    estimates = aggregator.estimate(1, Participation.constant(1, USERS))
    assert isinstance(estimates, ItemEstimates)
    held = ground_truth(values)
    deviations = np.sqrt(
        [spoken_for_variance(law.probabilities, USERS, each) for each in held.tolist()]
    )
    errors = (estimates.values - held) / deviations
    assert abs(errors.mean()) < 6 / math.sqrt(ITEMS)
    assert abs(np.square(errors).mean() - 1) < WITHIN
    # The published error is for the item with the largest error, the most frequent one.
    assert estimates.standard_error == pytest.approx(deviations.max(), rel=0.1)
    assert estimates.reports == USERS


def test_estimates_for_contributors_without_messages_are_negative() -> None:
    """Contributors without items might send nothing: estimates are then rightly below 0."""
    law = FragmentsLaw(
        2, 3, 1, 1, 5, "replacement", "exact", ComposedLaw((3, 1)), None, 1.0, 0.1, 1.0
    )
    aggregator = FragmentsAggregator(law)
    estimates = aggregator.estimate(1, Participation.constant(2, 5))
    assert estimates is not None
    assert estimates.values.tolist() == [-2.5] * 3
    assert aggregator.estimate(1, Participation.constant(2, 4)) is None
