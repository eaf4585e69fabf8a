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
from experiments.protocols.ldp_sgd import LdpSgd, LdpSgdLaw, LdpSgdParameters
from experiments.protocols.ldp_sgd.aggregator import (
    LdpSgdAggregator,
    accuracy,
    gradient_deviation,
    projected,
)
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


MANY = 400_000
EXAMPLE = np.array([[2, 3_000, -2_000, 1_000]])


def made(last_epoch: int = 1, **changed: object) -> LdpSgdLaw:
    values: dict[str, object] = {"epsilon": 4.0, "delta": 0.01, "features": 3, "classes": 3}
    requested = LdpSgdParameters(**(values | changed))  # type: ignore[arg-type]
    return calibrate(requested, last_epoch, minimum=100_000)


def clipped(law: LdpSgdLaw, model: NDArray[np.float64]) -> NDArray[np.float64]:
    features = EXAMPLE[0, 1:] / FEATURE_UNIT
    raised = np.exp(model.reshape(law.classes, -1) @ features)
    gradient = np.outer(raised / raised.sum() - np.eye(law.classes)[1], features).reshape(-1)
    length = math.sqrt(float(np.square(gradient).sum()))
    return np.asarray(gradient * min(1.0, law.clip / length))


@pytest.mark.parametrize("clip", [0.3, 2.0], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("reports", [1, 3])
def test_gradient_is_unbiased(clip: float, reports: int) -> None:
    """The test would detect a length that is off by 3 %, and gradients that ignore the model."""
    law = made(clip=clip, reports=reports)
    devices, rng = LdpSgd(law), seeded_generator(1)
    devices.enroll(MANY // reports, rng)
    model = np.linspace(-1, 1, law.dimensions)
    devices.take_model(model)
    aggregator = LdpSgdAggregator(law)
    aggregator.add(1, devices.report(1, np.repeat(EXAMPLE, MANY // reports, 0), None, rng), None)
    found, expected = aggregator.gradient(1), clipped(law, model)
    assert found is not None
    length = math.sqrt(float(np.square(expected).sum()))
    along = float(found @ expected) / length
    off = 7 * gradient_deviation(law, MANY)
    assert abs(along - length) < off < 0.03 * max(length, law.clip)
    assert np.abs(found - expected).max() < off
    assert np.abs(found - clipped(law, 0 * model)).max() > 2 * off


def test_gradients_have_the_predicted_error() -> None:
    """The test would reject predictions that are off by 10 %, or that include half of the noise."""
    runs, users = 400, 500
    law = made(runs)
    devices, rng = LdpSgd(law), seeded_generator(2)
    devices.enroll(users, rng)
    aggregator = LdpSgdAggregator(law)
    nothing = np.zeros((users, 4), np.int64)
    squares = 0.0
    for epoch in range(1, runs + 1):
        aggregator.add(epoch, devices.report(epoch, nothing, None, rng), None)
        found = aggregator.gradient(epoch)
        assert found is not None
        squares += float(np.square(found).sum())
    freedom = runs * law.dimensions
    standardized = squares / gradient_deviation(law, users) ** 2
    for scale in (0.81, 1.0, 1.21):
        below = stats.chi2.cdf(scale * standardized, freedom)
        above = stats.chi2.sf(scale * standardized, freedom)
        assert (2 * min(below, above) > 1e-9) == (scale == 1.0)


def test_model_steps_against_the_gradient_and_is_then_projected() -> None:
    law = made(3, rate=0.5, radius=0.4)
    aggregator = with_reports(law, (1, 3))
    expected = np.zeros(law.dimensions)
    for epoch in (1, 3):
        gradient = aggregator.gradient(epoch)
        assert gradient is not None
        expected = projected(expected - 0.5 * gradient, 0.4)
    assert aggregator.gradient(2) is None
    assert np.array_equal(aggregator.model(2), aggregator.model(1))
    assert np.array_equal(aggregator.model(3), expected)
    assert float(np.square(expected).sum()) == pytest.approx(0.16)
    assert not aggregator.model(0).any()


def test_same_reports_give_bitwise_identical_models() -> None:
    law = made(4)
    whole = with_reports(law, (1, 2, 3, 4))
    expected = [whole.model(epoch).tobytes() for epoch in range(5)]
    merged = LdpSgdAggregator(law)
    for epoch in (3, 1, 4, 2):
        merged.merge(LdpSgdAggregator.from_bytes(law, with_reports(law, (epoch,)).to_bytes()))
        merged.model(4)
    assert [merged.model(epoch).tobytes() for epoch in (4, 0, 3, 1, 2)] == [
        expected[epoch] for epoch in (4, 0, 3, 1, 2)
    ]


def with_reports(law: LdpSgdLaw, epochs: tuple[int, ...]) -> LdpSgdAggregator:
    aggregator = LdpSgdAggregator(law)
    for epoch in epochs:
        devices, rng = LdpSgd(law), seeded_generator(3, epoch)
        devices.enroll(50, rng)
        words = devices.report(epoch, np.repeat(EXAMPLE, 50, axis=0), None, rng)
        aggregator.add(epoch, words, None)
    return aggregator


def test_accuracy_is_the_fraction_of_correctly_classified_examples() -> None:
    test_set = np.array([[1, 100], [2, 100], [2, -100], [1, -100]])
    model = np.array([1.0, -1.0])
    assert accuracy(model, test_set, 2) == 0.5
    assert accuracy(model, test_set[::2], 2) == 1.0
