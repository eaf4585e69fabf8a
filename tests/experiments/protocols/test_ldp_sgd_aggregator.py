"""Test gradients from bits, and models from gradients."""

from __future__ import annotations

import math

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
from experiments.protocols.ldp_sgd.calibration import calibrate
from experiments.protocols.ldp_sgd.labeled_examples import FEATURE_UNIT

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
