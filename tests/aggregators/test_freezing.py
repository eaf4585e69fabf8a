"""Test that the predicted bias is the one that exhausted devices cause."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.freezing import LONGEST, FreezingModel
from dpstream.aggregators.future_rand import Estimator, FutureRandAggregator, predicted_variances
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator

CASES = [(64, 2, 4), (64, 4, 8), (64, 3, 6), (64, 2, 20), (48, 3, 40), (100, 4, 12)]
every_case = pytest.mark.parametrize(("epochs", "signs", "changes"), CASES)


def everybody_with(changes: int) -> NDArray[np.float64]:
    shares = np.zeros(changes + 1)
    shares[changes] = 1.0
    return shares


def random_streams(users: int, epochs: int, changes: int) -> NDArray[np.int8]:
    rng = seeded_generator(users, epochs, changes)
    chosen = np.argpartition(rng.random((users, epochs), np.float32), changes - 1)[:, :changes]
    steps = np.zeros((users, epochs), np.int8)
    np.put_along_axis(steps, chosen, 1, axis=1)
    return (np.cumsum(steps, axis=1, dtype=np.int16) & 1).astype(np.int8)


def root_mean_square(values: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.square(values).mean()))


@every_case
def test_bias_at_single_epochs_follows_the_hypergeometric_distribution(
    epochs: int, signs: int, changes: int
) -> None:
    until = stats.hypergeom(epochs, changes, np.arange(epochs + 1))
    numbers = np.arange(changes + 1)
    law = np.array([until.pmf(number) for number in numbers])
    exhausted = np.minimum(numbers, signs) % 2
    missed = FreezingModel(everybody_with(changes), epochs).missed(0, signs)
    np.testing.assert_allclose(missed, (numbers % 2 - exhausted) @ law, atol=1e-9)


@every_case
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bias_over_longer_intervals_matches_simulations_of_exhausted_devices(
    epochs: int, signs: int, changes: int, order: int
) -> None:
    users = 50_000
    values = random_streams(users, epochs, changes)[:, (1 << order) - 1 :: 1 << order]
    used = np.cumsum(np.diff(values, axis=1, prepend=0) != 0, axis=1)
    missed = (values - (np.minimum(used, signs) & 1)).mean(axis=0)
    foretold = FreezingModel(everybody_with(changes), epochs).missed(order, signs)
    # 7 standard deviations of a mean of values from -1 to 1, plus the model's inaccuracy.
    np.testing.assert_allclose(foretold[1:], missed, atol=7 / math.sqrt(users) + 0.01)


@pytest.mark.parametrize("estimator", ["tree", "prefix"])
@pytest.mark.parametrize(("epochs", "signs", "changes"), [(64, 3, 6), (50, 4, 12)])
def test_estimates_from_simulated_devices_have_the_predicted_bias(
    epochs: int, signs: int, changes: int, estimator: Estimator
) -> None:
    """At epsilon 64 tracked signs are exact: only exhaustion and the other signs cause errors."""
    users = 160_000
    calibrated = calibrate(FutureRandParameters(64.0, signs), epochs)
    law = replace(calibrated, order_weights=(1,) * len(calibrated.composed))
    values = random_streams(users, epochs, changes)
    measured = errors(law, values, estimator) / users
    foretold = FreezingModel(everybody_with(changes), epochs).bias(law, estimator)
    noise = np.sqrt(predicted_variances(law, epochs, estimator) / users)
    assert (np.abs(measured - foretold) <= 7 * noise + 0.005).all()
    # The test would detect a prediction without bias, or with the bias of single epochs.
    assert root_mean_square(foretold) > 4 * root_mean_square(noise)
    single = FreezingModel(everybody_with(changes), epochs).missed(0, signs)
    assert root_mean_square(measured) < 0.7 * root_mean_square(single)


def errors(
    law: FutureRandLaw, values: NDArray[np.int8], estimator: Estimator
) -> NDArray[np.float64]:
    users, epochs = values.shape
    rng = seeded_generator(9)
    devices = FutureRand(law)
    devices.enroll(users, rng)
    aggregator = FutureRandAggregator(law, estimator)
    for epoch in range(1, epochs + 1):
        aggregator.add(epoch, devices.report(epoch, values[:, epoch - 1], None, rng), None)
    participation = Participation.constant(epochs, users)
    estimates = [aggregator.estimate(epoch, participation).value for epoch in range(1, epochs + 1)]
    difference: NDArray[np.float64] = np.array(estimates, np.float64) - values.sum(axis=0)
    return difference


def test_exhaustion_model_accepts_many_changes_and_rejects_bad_input() -> None:
    model = FreezingModel(everybody_with(3_000), 4096)
    assert model.missed(0, 2)[2048] == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="16,385 epochs is out of range; expected 1 to 16,384"):
        FreezingModel(np.ones(1), LONGEST + 1)
    with pytest.raises(ValueError, match=r"9 changes do not fit: .* 8 in all"):
        FreezingModel(everybody_with(9), 8)
