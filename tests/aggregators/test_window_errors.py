"""Test standard errors of means over windows: dense computation, and errors of real devices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.change_errors import SampledChanges
from dpstream.aggregators.epoch_responses import SampledResponseAggregator
from dpstream.aggregators.estimate import GAP, Estimate, Participation
from dpstream.aggregators.window_errors import IndependentWindows, RetainedWindows, WindowErrors
from dpstream.pipeline.protocols.value_stream import PROTOCOL
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import SampledResponse
from tests.aggregators.test_changes import EPOCHS, REPORTS, estimates, law_of
from tests.aggregators.test_sampled_response import law_of as sampled_law


def variances_of(
    errors: WindowErrors, found: list[Estimate | None], window: int
) -> dict[int, float]:
    """Return the variances of sums, by the index of the window's last epoch."""
    by_epoch = {}
    for epoch, (estimate, people) in enumerate(zip(found, REPORTS.tolist(), strict=False)):
        if epoch % window == 0:
            errors.open_window()
        errors.next(estimate, people)
        if epoch % window == window - 1:
            by_epoch[epoch] = errors.variance
    return by_epoch


@pytest.mark.parametrize("window", [2, 5, 12, 24])
def test_variances_of_means_of_tracked_values_match_a_dense_computation(window: int) -> None:
    law = law_of()
    participation = Participation.empty(EPOCHS)
    for epoch, reports in enumerate(REPORTS.tolist(), 1):
        # All devices are present.
        participation.set(epoch, reports, reports)
    nothing = np.zeros(EPOCHS, np.int64)

    def values(symbols: np.ndarray) -> np.ndarray:
        found = estimates(law, symbols, participation)
        return np.array([0.0 if each is None else each.value for each in found], np.float64)

    # Effect of one more step at an epoch on the estimates of all epochs.
    one = np.eye(EPOCHS, dtype=np.int64)
    weights = np.array([values(row) - values(nothing) for row in one]) * 8
    dense = weights.T @ np.diag(REPORTS.astype(float)) @ weights
    errors = PROTOCOL.aggregation.window_errors(law, None)
    assert errors is not None
    for last, variance in variances_of(
        errors, estimates(law, nothing, participation), window
    ).items():
        members = np.zeros(EPOCHS)
        members[last - window + 1 : last + 1] = 1
        assert variance == pytest.approx(members @ dense @ members, rel=1e-9, abs=1e-6)


def test_variances_of_means_of_correlated_errors_match_a_dense_computation() -> None:
    """Half of each error remains at the next epoch, and all of it at a gap."""
    deviations, flags = [4.0, 3.0, 3.0, 5.0], [(), (), (GAP,), ()]
    found: list[Estimate | None] = [
        Estimate.around(1.0, deviation, 9.0, 400, 400, flag)
        for deviation, flag in zip(deviations, flags, strict=True)
    ]
    kept = np.array([1.0, 0.5, 1.0, 0.5])
    covariances = np.diag(np.square(deviations))
    for early in range(4):
        for late in range(early + 1, 4):
            common = deviations[early] ** 2 * kept[early + 1 : late + 1].prod()
            covariances[early, late] = covariances[late, early] = common
    assert variances_of(RetainedWindows(0.5), found, 4) == {3: pytest.approx(covariances.sum())}
    assert variances_of(IndependentWindows(), found, 2) == {1: 25.0, 3: 34.0}


def test_epoch_without_an_estimate_adds_no_variance() -> None:
    for errors in (IndependentWindows(), RetainedWindows(0.5)):
        errors.next(None, 400)
        assert errors.variance == 0.0


@pytest.mark.parametrize(("epsilon", "reports", "window"), [(4.0, 1, 4), (4.0, 3, 4), (1.0, 1, 6)])
def test_window_means_and_changes_between_them_have_the_stated_errors(
    epsilon: float, reports: int, window: int
) -> None:
    """Measure means of sampled answers; the sampling error dominates at the larger epsilon.

    Values are new at every epoch, so samples of different users are uncorrelated.
    """
    horizon, users, runs = 12, 2_000, 120
    law = sampled_law(epsilon, reports, horizon)
    rng = seeded_generator(19)
    windows = horizon // window
    means, changes = [], []
    for _ in range(runs):
        devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        truth = rng.random((horizon, users)) < 0.2
        errors, changed = IndependentWindows(), SampledChanges(1, window)
        difference = 0.0
        for epoch in range(1, horizon + 1):
            aggregator.add(epoch, devices.report(epoch, truth[epoch - 1], None, rng), None)
            estimate = aggregator.estimate(epoch, Participation.constant(horizon, users))
            assert estimate is not None
            assert estimate.value is not None
            errors.next(estimate, users)
            difference += (estimate.value - int(truth[epoch - 1].sum())) / window
            if epoch % window == 0:
                deviation = math.sqrt(errors.variance) / window
                means.append((difference / deviation, difference))
                change = changed.next(Estimate.around(400.0, deviation, 0.0, 9, users), users)
                if change is not None and epoch == 2 * window:
                    changes.append((means[-1][1] - means[-2][1]) / change)
                errors.open_window()
                difference = 0.0
    scores = np.array([score for score, _ in means])
    assert len(scores) == runs * windows
    assert 0.9 <= scores.std() <= 1.1
    assert 0.92 <= (np.abs(scores) < 1.96).mean() <= 0.98
    assert abs(scores.mean()) < 4 / math.sqrt(len(scores))
    # The bound for values that persist is larger than the error of these.
    assert 0.75 <= np.std(changes) <= 1.1
