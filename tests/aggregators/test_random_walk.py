"""Compare shrunk estimates of value_stream with dense algebra, and with random walks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators import random_walk as module
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.random_walk import random_walk
from dpstream.aggregators.shuffled_value_stream import ShuffledValueStreamAggregator
from dpstream.aggregators.value_stream import SymbolSums, ValueStreamAggregator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as calibrate_twin,
)
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate

EPOCHS, BOOST, DECAY = 12, 3.0, 0.4


def only(monkeypatch: pytest.MonkeyPatch, *multiples: float) -> None:
    monkeypatch.setattr(module, "_GRID", np.array(multiples))
    monkeypatch.setattr(module, "_PRIOR", np.zeros(len(multiples)))


def system() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return matrices from steps to counts and to received sums, shape (epochs, epochs) each."""
    counts = np.tril(np.ones((EPOCHS, EPOCHS)))
    lags = np.subtract.outer(np.arange(EPOCHS), np.arange(EPOCHS))
    return counts, counts + np.where(lags >= 0, BOOST * DECAY ** np.maximum(lags, 0), 0.0)


def conditional(
    received: NDArray[np.float64], variances: NDArray[np.float64], first: float, step: float
) -> tuple[NDArray[np.float64], float]:
    counts, map_to = system()
    prior = np.diag([first, *[step] * (EPOCHS - 1)])
    known = np.isfinite(variances)
    rows = map_to[known]
    total = rows @ prior @ rows.T + np.diag(variances[known])
    solved = np.linalg.solve(total, received[known])
    likelihood = -0.5 * (np.linalg.slogdet(total)[1] + received[known] @ solved)
    return counts @ prior @ rows.T @ solved, float(likelihood)


def some() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(5)
    received, variances = rng.normal(size=EPOCHS) * 20, rng.uniform(1.0, 4.0, EPOCHS)
    variances[[0, 5, 6]] = np.inf
    return received, variances


def test_filter_and_smoother_are_conditional_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    received, variances = some()
    step = 0.7 * variances.min()
    only(monkeypatch, 0.7)
    found = random_walk(received, variances, 900.0, boost=BOOST, decay=DECAY)
    expected, _ = conditional(received, variances, 900.0, step)
    np.testing.assert_allclose(found.offline, expected, rtol=1e-9)
    for epoch in range(EPOCHS):
        so_far = np.where(np.arange(EPOCHS) <= epoch, variances, np.inf)
        expected = np.zeros(EPOCHS)
        if np.isfinite(so_far).any():
            expected, _ = conditional(received, so_far, 900.0, step)
        assert found.online[epoch] == pytest.approx(expected[epoch], rel=1e-9, abs=1e-12)


def test_value_stream_is_smoothed_retrospectively() -> None:
    law = calibrate(ValueStreamParameters(1.0, 2), EPOCHS)
    aggregator = ValueStreamAggregator(law)
    participation = Participation.constant(EPOCHS, 5_000)
    for epoch in (3, 4, 7, 8, 9, 12):
        aggregator._add(epoch, SymbolSums(4_000, 160 * epoch, 4_000 * 64))
    participation.contributors[1:] = 4_000
    found = aggregator.smoothed(EPOCHS, participation)
    published = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    assert published[:2] == [None, None]
    for at, each in enumerate(published[2:], start=2):
        assert each is not None
        assert found.values[at, 0] == each.value
        assert found.standard_errors[at] == each.standard_error
        assert found.gaps[at] == bool(each.flags)
    # There is no estimate before the first reports.
    assert found.gaps[:2].all()
    assert found.standard_errors[:2].tolist() == [5_000, 5_000]
    assert found.shrunk is not None
    assert abs(found.shrunk[11, 0] - found.shrunk[8, 0]) < abs(
        found.values[11, 0] - found.values[8, 0]
    )


def test_shuffled_value_stream_is_smoothed_retrospectively() -> None:
    requested = ShuffledCountsParameters(1.0, 1e-6, max_changes=2, dummies="shuffle")
    aggregator = ShuffledValueStreamAggregator(calibrate_twin(requested, EPOCHS, 100))
    participation = Participation.constant(EPOCHS, 5_000)
    for epoch in range(1, EPOCHS + 1):
        aggregator._add(epoch, 1, 256 * 10 * epoch)
    found = aggregator.smoothed(EPOCHS, participation)
    last = aggregator.estimate(EPOCHS, participation)
    assert last is not None
    assert found.values[-1, 0] == last.value
    assert found.shrunk is not None
    assert not found.gaps.any()
