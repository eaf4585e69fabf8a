"""Test devices that report a bit of a gradient, and the directions derived from seeds."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.randomness import seeded_generator
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdParameters
from experiments.protocols.ldp_sgd.calibration import calibrate, epsilon_with
from experiments.protocols.ldp_sgd.gradient_directions import (
    UNIT,
    directions,
    draw_seeds,
    normal_table,
)
from experiments.protocols.ldp_sgd.labeled_examples import FEATURE_UNIT

ASKED = LdpSgdParameters(1.9, 1e-5, features=65, classes=10, groups=30)


@pytest.mark.parametrize(
    ("participations", "expected"), [(1, 0.290), (10, 1.013), (30, 1.858), (100, 3.665)]
)
def test_shuffling_reduces_the_total_epsilon_of_all_steps(
    participations: int, expected: float
) -> None:
    law = calibrate(ASKED, 30 * participations, minimum=2000)
    assert law.participations == participations
    assert law.stream_epsilon == pytest.approx(expected, abs=1e-3)
    assert law.epsilon == pytest.approx(0.290, abs=5e-4)
    assert epsilon_with(law, 2000) == pytest.approx(law.epsilon)


def test_local_loss_of_a_report_is_at_most_the_requested_loss() -> None:
    for requested in np.geomspace(0.2, 8.0, 12).tolist():
        parameters = LdpSgdParameters(requested, 1e-5, features=2, classes=2, groups=30)
        law = calibrate(parameters, 30, minimum=2000)
        assert law.odds.loss <= requested <= law.odds.loss * (1 + 1e-14)


def test_extra_step_is_charged_if_groups_do_not_divide_the_steps() -> None:
    law = calibrate(ASKED, 301, minimum=2000)
    assert law.participations == 11
    assert law.stream_epsilon == calibrate(ASKED, 330, minimum=2000).stream_epsilon
    assert law.stream_epsilon > calibrate(ASKED, 300, minimum=2000).stream_epsilon


def test_quantile_table_is_accurate_and_platform_independent() -> None:
    table = normal_table()
    normal = NormalDist()
    expected = [round(UNIT * normal.inv_cdf((word + 0.5) / 65_536)) for word in range(65_536)]
    assert table.tolist() == expected
    pinned = "1ea009ce409dac97d6bd609266910f809c5fb912f78e16bd89145b08174d6fc5"
    assert hashlib.sha256(table.astype("<i2").tobytes()).hexdigest() == pinned
    # Estimates depend on the mean of |v|.
    assert np.abs(table).mean() / UNIT == pytest.approx(math.sqrt(2 / math.pi), rel=1e-5)


def test_directions_are_computed_in_integers() -> None:
    seed = bytes(range(1, 17))
    (found,) = directions(np.frombuffer(seed, np.uint8)[None], 7).tolist()
    low, high = (int.from_bytes(half, "little") for half in (seed[:8], seed[8:]))
    table = normal_table().tolist()
    expected = []
    for place in (1, 2):
        word = mixed(low ^ mixed((high + place * 0x9E3779B97F4A7C15) % 2**64))
        expected += [table[word >> shift & 0xFFFF] for shift in (0, 16, 32, 48)]
    assert found == expected[:7]


def mixed(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_coordinates_are_independent_gaussians() -> None:
    seeds = draw_seeds(40_000, 128, seeded_generator(1))
    vectors = directions(seeds, 9).astype(np.float64) / UNIT
    for coordinate in vectors.T:
        assert stats.kstest(coordinate, "norm").pvalue > 1e-9
    products = vectors.T @ vectors / len(vectors)
    assert np.abs(products - np.eye(9)).max() < 7 * math.sqrt(2 / len(vectors))


def test_seeds_are_uniform_with_the_requested_number_of_bits() -> None:
    seeds = draw_seeds(80_000, 11, seeded_generator(2))
    assert seeds.shape == (80_000, 2)
    numbers = seeds[:, 0] + 256 * seeds[:, 1].astype(np.int64)
    assert numbers.max() == 2**11 - 1
    assert stats.chisquare(np.bincount(numbers, minlength=2**11)).pvalue > 1e-9


def some_examples(count: int, features: int, classes: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(3)
    rows = rng.integers(-FEATURE_UNIT, FEATURE_UNIT, (count, 1 + features))
    rows[:, 0] = rng.integers(1, classes + 1, count)
    return rows


def test_gradients_match_finite_differences_of_the_loss() -> None:
    features, classes = 3, 4
    requested = LdpSgdParameters(2.0, 1e-5, features, classes)
    devices = LdpSgd(calibrate(requested, 1, minimum=100))
    model = np.random.default_rng(4).normal(size=features * classes)
    devices.take_model(model)
    examples = some_examples(20, features, classes)
    errors, lengths = devices.gradients(examples)

    def losses(at: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = examples[:, 1:] / FEATURE_UNIT @ at.reshape(classes, features).T
        right = scores[np.arange(len(examples)), examples[:, 0] - 1]
        lost: NDArray[np.float64] = np.log(np.exp(scores).sum(axis=1)) - right
        return lost

    found = errors[:, :, None] / 4096 * examples[:, None, 1:] / FEATURE_UNIT
    for place in range(features * classes):
        step = 1e-5 * np.eye(features * classes)[place]
        slope = (losses(model + step) - losses(model - step)) / 2e-5
        assert found.reshape(len(examples), -1)[:, place] == pytest.approx(slope, abs=2e-4)
    assert lengths == pytest.approx(np.sqrt(np.square(found).sum(axis=(1, 2))))
    examples[:, 0] = 0
    errors, lengths = devices.gradients(examples)
    assert not errors.any(), "gradient of no example"
    assert not lengths.any()


def test_report_beyond_the_guaranteed_number_of_steps_is_rejected() -> None:
    requested = LdpSgdParameters(2.0, 1e-5, 2, 2, groups=2)
    devices, rng = LdpSgd(calibrate(requested, 4, minimum=100)), seeded_generator(5)
    devices.enroll(3, rng)
    examples = some_examples(3, 2, 2)
    for epoch, present in ((1, [True, True, False]), (2, [True, False, False])):
        assert len(devices.report(epoch, examples, np.array(present), rng)) == sum(present)
    with pytest.raises(ValueError, match=("a device has participated in 2 steps before epoch")):
        devices.report(3, examples, None, rng)
    assert devices.epoch == 2
    assert len(devices.report(3, examples, np.array([False, True, True]), rng)) == 2
