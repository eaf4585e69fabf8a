"""Test the count-mean sketch: errors of its counts, and the privacy of its messages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpstream.aggregators.estimate import Participation
from dpstream.randomizers.accounting.amplification import amplified_epsilon, of_randomized_response
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.count_mean_sketch import (
    CountMeanSketch,
    CountMeanSketchLaw,
    CountMeanSketchParameters,
)
from experiments.protocols.count_mean_sketch.aggregator import (
    CountMeanSketchAggregator,
    bits_variance,
    shared_variance,
)
from experiments.protocols.count_mean_sketch.calibration import (
    calibrate,
    epsilon_with,
    fewest_in_row,
)

ITEMS = 600
LABELS = tuple(map(str, range(ITEMS)))
HORSE, HORSE_SQUARES = 459_254, 7.5e7
"""Users of the paper's image of a horse, and the sum of its squared counts."""


def with_loss(law: CountMeanSketchLaw, loss: float) -> CountMeanSketchLaw:
    return replace(law, bits=replace(law.bits, odds=optimal(1, loss)))


def test_error_formula_matches_the_errors_for_the_horse_image_in_the_paper() -> None:
    """The error is 2.85 without noise; bits with a loss of 7.12 contribute 19.3."""
    requested = CountMeanSketchParameters(1.0, 5e-8, LABELS, neighbors="removal")
    law = with_loss(calibrate(requested, 1, HORSE), 7.120)
    shared = shared_variance(law, HORSE, HORSE_SQUARES)
    assert math.sqrt(shared) == pytest.approx(2.85, abs=0.01)
    reversed_ = 1 / (1 + math.exp(7.120))
    noise = HORSE * reversed_ * (1 - reversed_) / (1 - 2 * reversed_) ** 2
    assert bits_variance(law, HORSE) == pytest.approx(noise, rel=1e-4)
    # Nearly all counts of the image are 0: clipping halves the squared error. 14.1 was measured.
    assert math.sqrt((shared + noise) / 2) == pytest.approx(14.1, rel=0.03)


@pytest.mark.parametrize("loss", [4.0, 25.0])
def test_errors_of_counts_match_the_stated_standard_error(loss: float) -> None:
    users = 40_000
    requested = CountMeanSketchParameters(1.0, 1e-6, LABELS, rows=64, buckets=512)
    law = with_loss(calibrate(requested, 1, users), loss)
    held = np.floor((ITEMS + 1) * np.random.default_rng(1).random(users) ** 3).astype(np.int64)
    ground_truth = np.bincount(held, minlength=ITEMS + 1)[1:]
    devices, aggregator = CountMeanSketch(law), CountMeanSketchAggregator(law)
    devices.enroll(users, seeded_generator(1))
    reports = devices.report(1, held[:, None], None, seeded_generator(2))
    words = written_out(reports)
    aggregator.add(1, words, None)
    found = aggregator.estimate(1, Participation.constant(1, users))
    assert found is not None
    squared = float(np.square(found.values - ground_truth).mean())
    assert squared == pytest.approx(found.standard_error**2, rel=7 * math.sqrt(2 / ITEMS))
    # An aggregator with other hashes than the devices finds nothing.
    other = CountMeanSketchAggregator(replace(law, rows=128, bits=replace(law.bits, items=256)))
    other.add(1, words, None)
    wrong = other.estimate(1, Participation.constant(1, users))
    assert wrong is not None
    assert (
        np.corrcoef(wrong.values, ground_truth)[0, 1]
        < 0.5
        < np.corrcoef(found.values, ground_truth)[0, 1]
    )


def test_loss_is_computed_for_the_number_of_contributors_to_a_row() -> None:
    """A message is hidden only among the messages of its row, not among all contributors."""
    requested = CountMeanSketchParameters(1.0, 1e-6, LABELS, 16, 512, "removal")
    law = calibrate(requested, 1, 40_000)
    in_row = law.bits.minimum
    assert in_row == fewest_in_row(40_000, 16, 1e-8)
    # With several epochs, it is likelier that some row has few contributors at some epoch.
    assert (
        calibrate(requested, 4, 40_000).bits.minimum == fewest_in_row(40_000, 16, 2.5e-9) < in_row
    )
    assert stats.binom.cdf(in_row - 2, 39_999, 1 / 16) <= 1e-8
    assert stats.binom.cdf(in_row - 1, 39_999, 1 / 16) > 1e-8
    coin = of_randomized_response(law.bits.odds.loss, 2)
    assert 0.99 < amplified_epsilon(coin, in_row, 0.99e-6) <= 1.0
    assert epsilon_with(law, 40_000) == pytest.approx(1.0, rel=0.01)
    assert epsilon_with(law, 4_000) > 1.5
    # Noise sized as if all contributors hid a message would lose far more:
    alone = calibrate(CountMeanSketchParameters(1.0, 1e-6, LABELS, 1, 512, "removal"), 1, 40_000)
    least = of_randomized_response(alone.bits.odds.loss, 2)
    assert amplified_epsilon(least, in_row, 1e-6) > 3.0
