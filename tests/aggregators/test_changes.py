"""Test standard errors of changes between epochs, on formulas and on real devices."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.change_errors import ChangeErrors, FollowedChanges
from dpstream.aggregators.estimate import NORMAL_95, Estimate, Participation
from dpstream.aggregators.value_stream import SymbolSums, ValueStreamAggregator
from dpstream.pipeline.protocols.value_stream import PROTOCOL
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate

EPOCHS = 24
REPORTS = np.array([0, 0, *range(400, 500, 10), 0, 0, *range(600, 700, 10)][:EPOCHS])
"""Number of devices by epoch: none at first, then growing, with two suppressed epochs."""


@cache
def law_of(epsilon: float = 1.0) -> ValueStreamLaw:
    return calibrate(ValueStreamParameters(epsilon=epsilon, max_changes=2), last_epoch=EPOCHS)


def change_errors(law: ValueStreamLaw, lag: int) -> FollowedChanges:
    found = PROTOCOL.aggregation.changes(law, None, lag)
    assert isinstance(found, FollowedChanges)
    return found


def estimates(
    law: ValueStreamLaw, symbols: NDArray[np.int64], participation: Participation
) -> list[Estimate | None]:
    aggregator = ValueStreamAggregator(law)
    for epoch, (sum_of_them, reports) in enumerate(zip(symbols, REPORTS, strict=True), 1):
        # The sum of the squares is irrelevant here.
        aggregator._add(epoch, SymbolSums(int(reports), int(sum_of_them), 0))
    return [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]


def said(
    errors: ChangeErrors, found: list[Estimate | None], people: NDArray[np.int64]
) -> list[float | None]:
    return [errors.next(*each) for each in zip(found, people.tolist(), strict=True)]


@pytest.mark.parametrize("lag", [1, 3, 11])
def test_standard_errors_of_changes_match_a_dense_computation(lag: int) -> None:
    law = law_of()
    participation = Participation.empty(EPOCHS)
    for epoch, reports in enumerate(REPORTS.tolist(), 1):
        # All devices are present.
        participation.set(epoch, reports, reports)
    nothing = np.zeros(EPOCHS, np.int64)

    def values(symbols: NDArray[np.int64]) -> NDArray[np.float64]:
        found = estimates(law, symbols, participation)
        return np.array([0.0 if each is None else each.value for each in found], np.float64)

    # Effect of one more step at an epoch on the estimates of all epochs.
    one = np.eye(EPOCHS, dtype=np.int64)
    weights = np.array([values(row) - values(nothing) for row in one]) * 8
    variances = weights.T @ np.diag(REPORTS.astype(float)) @ weights
    found = said(change_errors(law, lag), estimates(law, nothing, participation), REPORTS)
    for epoch, deviation in enumerate(found):
        if epoch - lag < 2:
            assert deviation is None
            continue
        change = np.zeros(EPOCHS)
        change[[epoch, epoch - lag]] = 1, -1
        expected = math.sqrt(max(change @ variances @ change, 0.0))
        assert deviation == pytest.approx(expected, rel=1e-9, abs=1e-6)


def measured(
    trials: int, devices: int, lag: int, *, absent: float = 0.0
) -> tuple[float, float, float]:
    """Return interval coverage, mean squared error, and the latter if errors were independent.

    Errors are in units of the standard error. A tenth of the devices is enrolled late, one epoch is
    suppressed, and values change at most twice. The devices of all trials form one population.
    """
    law, rng = law_of(4.0), seeded_generator(7)
    early, late, suppressed, last = devices - devices // 10, EPOCHS // 3, EPOCHS // 2, EPOCHS
    begins, ends = np.sort(rng.integers(1, 2 * last, (2, trials * devices)), axis=0)
    # Late devices are enrolled after all other devices, and numbered in that order.
    trial_of = np.concatenate(
        [np.repeat(np.arange(trials), early), np.repeat(np.arange(trials), devices - early)]
    )
    people = ValueStream(law)
    people.enroll(trials * early, rng)
    aggregators = [ValueStreamAggregator(law) for _ in range(trials)]
    participations = [Participation.empty(last) for _ in range(trials)]
    errors = [change_errors(law, lag) for _ in range(trials)]
    before: list[list[tuple[float, float, int]]] = [[] for _ in range(trials)]
    held, squares, independent = [], [], []
    for epoch in range(1, last + 1):
        if epoch == late:
            people.enroll(trials * (devices - early), rng)
        values = ((begins <= epoch) & (epoch < ends))[: people.population]
        trial = trial_of[: people.population]
        present = rng.random(people.population) >= absent
        words = people.follow(epoch, values, present, rng, np.full(people.population, True))
        order = np.argsort(trial[present], kind="stable")
        reports = np.bincount(trial[present], minlength=trials)
        sent = np.split(words[order, None], np.cumsum(reports)[:-1])
        ground_truths = np.bincount(trial[values], minlength=trials).tolist()
        population = people.population // trials
        for run in range(trials):
            if epoch != suppressed:
                aggregators[run].add(epoch, sent[run], None)
            participations[run].set(epoch, int(reports[run]), population)
            estimate = aggregators[run].estimate(epoch, participations[run])
            deviation = errors[run].next(estimate, population)
            assert estimate is not None
            assert estimate.value is not None
            assert estimate.standard_error is not None
            before[run].append((estimate.value, estimate.standard_error, ground_truths[run]))
            # While estimates miss a change, no coverage is claimed; the miss decays afterwards.
            if deviation is None or suppressed <= epoch < suppressed + 2 * lag + 4:
                continue
            then, now = before[run][-1 - lag], before[run][-1]
            error = (now[0] - then[0] - (now[2] - then[2])) / deviation
            held.append(abs(error) <= NORMAL_95)
            squares.append(error**2)
            both = math.hypot(now[1], then[1])
            independent.append((error * deviation / both) ** 2)
    return float(np.mean(held)), float(np.mean(squares)), float(np.mean(independent))


def test_change_intervals_have_nominal_coverage_in_a_short_run() -> None:
    held, square, independent = measured(trials=16, devices=300, lag=1)
    assert held > 0.88
    assert square == pytest.approx(1.0, abs=0.4)
    # If errors were assumed independent, intervals would be far too wide.
    assert independent < 0.6


@pytest.mark.verify
@pytest.mark.parametrize(("lag", "absent"), [(1, 0.0), (4, 0.0), (1, 0.2), (4, 0.2)])
def test_change_intervals_have_95_percent_coverage(lag: int, absent: float) -> None:
    held, square, independent = measured(600, 400, lag, absent=absent)
    print(f"\nchange since {lag}, {absent:.0%} silent: {held:.4f} hold, mean square {square:.3f}")
    assert 0.94 < held < 0.96
    assert square == pytest.approx(1.0, abs=0.05)
    assert independent < 0.95
