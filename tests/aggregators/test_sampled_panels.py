"""Test panels whose devices answer at few epochs: errors, small groups, changes and means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.panel_estimates import SMALL_GROUP, PanelEstimates
from dpstream.aggregators.sampled_panels import (
    SampledPanelChanges,
    SampledPanelsAggregator,
    SampledPanelWindows,
    flip_correlation,
)
from dpstream.pipeline.protocols.panels import panel_domain
from dpstream.pipeline.protocols.sampled_panels import PROTOCOL
from dpstream.randomizers.panels import (
    ONE,
    PanelGroup,
    PanelQuestion,
    SampledPanelDevices,
    SampledPanelsParameters,
)
from dpstream.randomizers.panels.calibration import calibrate_sampled
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-9
EPOCHS = 4
QUESTIONS = (
    PanelQuestion("wau", "boolean"),
    PanelQuestion("spent", "mean", 10, 30, share=2),
    PanelQuestion("size", "labels", labels=("S", "M", "L")),
)
GROUPS = tuple(PanelGroup({"os": os, "arm": arm}) for os in ("ios", "web") for arm in ("A", "B"))
ONCE = SampledPanelsParameters(4.0, QUESTIONS, GROUPS, (("os",), ("os", "arm")), 1, reports=1)
TWICE = replace(ONCE, reports=2)
SIZES = (4_800, 2_400, 1_600, 800)
OF_GROUP = np.repeat(np.arange(4), SIZES)


def answers_at(epoch: int, of_group: NDArray[np.intp] = OF_GROUP) -> NDArray[np.int64]:
    """Return answers that every user changes at every epoch, with fixed numbers of each answer."""
    place = (np.arange(len(of_group)) + 5 * epoch) % 12
    spent = (place + of_group % 4) * ONE // 16
    size = np.where(place < 6, 1, np.where(place < 7, 2, 3))
    return np.stack([place < 2 + of_group % 4, spent, size], axis=1).astype(np.int64)


def runs(
    parameters: SampledPanelsParameters,
    values: Sequence[NDArray[np.int64]],
    seeds: int,
    of_group: NDArray[np.intp] = OF_GROUP,
    presence: float = 1.0,
) -> Iterator[list[PanelEstimates]]:
    law, users = calibrate_sampled(parameters, len(values)), len(of_group)
    for seed in range(seeds):
        rng = seeded_generator(seed)
        devices, aggregator = SampledPanelDevices(law), SampledPanelsAggregator(law, parameters)
        devices.enroll(users, rng, {"group": of_group})
        participation, found = Participation.empty(len(values)), []
        for epoch, now in enumerate(values, 1):
            present = None if presence == 1 else rng.random(users) < presence
            words = devices.report(epoch, now, present, rng)
            aggregator.add(epoch, words, None)
            participation.set(epoch, len(words), users)
            estimate = aggregator.estimate(epoch, participation)
            assert estimate is not None
            found.append(estimate)
        read = SampledPanelsAggregator.from_bytes(law, parameters, aggregator.to_bytes())
        assert read.to_bytes() == aggregator.to_bytes()
        yield found


def check_squares(standardized: NDArray[np.float64], least: float = 0.9) -> None:
    """Compare sums of squared errors with as many squared standard errors."""
    squares, many = np.square(standardized).sum(axis=0), len(standardized)
    assert (stats.chi2.sf(squares / 1.1, many) > FALSE_ALARM).all()
    assert (stats.chi2.cdf(squares / least, many) > FALSE_ALARM).all()


@pytest.mark.parametrize("parameters", [ONCE, TWICE], ids=["once", "twice"])
@pytest.mark.parametrize("presence", [1.0, 0.6])
def test_all_rows_are_unbiased_and_have_their_standard_errors(
    parameters: SampledPanelsParameters, presence: float
) -> None:
    values = [answers_at(epoch) for epoch in range(1, EPOCHS + 1)]
    found = list(runs(parameters, values, 120, presence=presence))
    domain = panel_domain(parameters)
    for at in range(EPOCHS):
        truth = domain.ground_truth(values[at], OF_GROUP)
        errors = np.array([run[at].values - truth for run in found])
        standardized = errors / np.array([run[at].standard_errors for run in found])
        means = standardized.mean(axis=0) * math.sqrt(len(found))
        assert (2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM).all(), means
        check_squares(standardized, least=0.7)
        assert (stats.chi2.sf(4 * np.square(standardized).sum(axis=0), 120) < FALSE_ALARM).all()


def test_intervals_of_a_mean_hold_if_every_number_changes_at_every_epoch() -> None:
    """Numbers are drawn again at every epoch, which is far more often than value_stream allows."""
    parameters = SampledPanelsParameters(4.0, (QUESTIONS[1],))
    rng, held = np.random.default_rng(1), []
    values = [rng.integers(0, ONE, (5_000, 1)) // (1 + epoch % 3) for epoch in range(8)]
    everyone = np.zeros(5_000, np.intp)
    truth = [panel_domain(parameters).ground_truth(each, everyone) for each in values]
    for found in runs(parameters, values, 60, everyone):
        held += [
            abs(estimate.values - number) <= NORMAL_95 * estimate.standard_errors
            for estimate, number in zip(found, truth, strict=True)
        ]
    assert stats.binomtest(int(np.sum(held)), len(held), 0.95).pvalue > FALSE_ALARM
    assert np.mean(held) > 0.92


def test_total_of_many_small_groups_is_unbiased() -> None:
    """Groups of 25 users have about two answers, often none: they are estimated together."""
    groups = tuple(PanelGroup({"name": f"group {number}"}) for number in range(80))
    question = PanelQuestion("wau", "boolean")
    parameters = SampledPanelsParameters(4.0, (question,), groups, (("name",),), reports=1)
    of_group = np.concatenate([np.repeat(np.arange(79), 25), np.full(4_000, 79)])
    # Few users of small groups answer yes, and most of the large one.
    yes = np.where(
        of_group < 79, np.arange(len(of_group)) % 10 < 1, np.arange(len(of_group)) % 5 < 4
    )
    values = [yes[:, None].astype(np.int64)] * 12
    standardized = []
    for found in runs(parameters, values, 20, of_group):
        for estimate in found:
            assert estimate.flags == (SMALL_GROUP,)
            assert estimate.numbers.tolist() == [1, 81]
            assert 4 < estimate.heads[1:80].sum() / 25 < 10
            standardized.append((estimate.values[0] - yes.sum()) / estimate.standard_errors[0])
    assert abs(np.mean(standardized)) < 6 / math.sqrt(len(standardized))
    check_squares(np.array(standardized)[:, None], least=0.7)


def test_group_is_published_if_enough_of_its_devices_answer() -> None:
    values, parameters = [answers_at(1)] * EPOCHS, replace(ONCE, by_minimum=200)
    (found,) = runs(parameters, values, 1)
    for row, value in zip(parameters.rows, found[0].values, strict=True):
        answering = found[0].heads[[each.groups == row.groups for each in parameters.rows]]
        # One row of each question; a question with labels has several.
        enough = sum(answering[[0, 1, 2]]) >= 200
        assert np.isfinite(value) == (enough or not row.in_breakdown)
    assert found[0].reports == len(OF_GROUP)
    assert found[0].heads[0] < len(OF_GROUP) / 4


@pytest.mark.parametrize("parameters", [ONCE, TWICE], ids=["once", "twice"])
@pytest.mark.parametrize("persistent", [True, False])
def test_changes_and_means_have_errors_that_are_true_or_too_large(
    parameters: SampledPanelsParameters, persistent: bool
) -> None:
    epochs, window = 8, 4
    law, domain = calibrate_sampled(parameters, epochs), panel_domain(parameters)
    values = [answers_at(1 if persistent else epoch) for epoch in range(epochs)]
    truth = [domain.ground_truth(each, OF_GROUP) for each in values]
    changed: dict[int, list[Any]] = {1: [], 4: []}
    means = []
    for found in runs(parameters, values, 60):
        for lag, standardized in changed.items():
            errors = SampledPanelChanges(law, parameters, lag)
            deviations = [errors.next(each, each.population) for each in found]
            assert deviations[:lag] == [None] * lag
            change = found[-1].values - found[-1 - lag].values - truth[-1] + truth[-1 - lag]
            standardized.append(change / deviations[-1])
        windows = SampledPanelWindows(law, parameters)
        for each in found[:window]:
            windows.next(each, each.population)
        windows.open_window()
        for each in found[window:]:
            windows.next(each, each.population)
        mean = np.mean([each.values for each in found[window:]], axis=0)
        means.append(
            (mean - np.mean(truth[window:], axis=0)) / (np.sqrt(windows.variance) / window)
        )
    for standardized in (*changed.values(), means):
        check_squares(np.array(standardized), least=0.15)
    # Different devices answer: nothing is added.
    check_squares(np.array(changed[1]), least=0.4)


def test_correlation_of_flips_is_that_of_the_mechanism() -> None:
    law: Any = calibrate_sampled(replace(TWICE, epsilon=1.0, groups=(), by=()), 4)
    devices = SampledPanelDevices(law)
    devices.enroll(200_000, seeded_generator(1))
    arrays = devices.state_arrays()
    flips = arrays["flips"][arrays["question"] == 1].astype(np.int64)
    found = np.corrcoef(flips & 1, flips >> 1)[0, 1]
    assert abs(found) == pytest.approx(flip_correlation(law.questions[0].law), abs=0.02)
    once: Any = calibrate_sampled(ONCE, 4)
    assert flip_correlation(once.questions[0].law) == 0


def test_covariances_of_labels_are_those_of_the_mechanism() -> None:
    """Answers in the set of one label are not in that of another."""
    parameters = SampledPanelsParameters(4.0, (QUESTIONS[2],), reports=1)
    law, everyone = calibrate_sampled(parameters, EPOCHS), np.zeros(4_000, np.intp)
    found = [
        run[0] for run in runs(parameters, [answers_at(1, everyone)[:, 2:]] * 4, 200, everyone)
    ]
    measured = np.cov(np.array([each.values for each in found]).T)
    covariances = PROTOCOL.aggregation.question_covariances(law, 0)
    for one, other in pairwise(range(3)):
        stated = np.mean([each.covariance(one, other, covariances) for each in found])
        scale = math.sqrt(measured[one, one] * measured[other, other])
        assert abs(measured[one, other] - stated) < 6 * scale / math.sqrt(len(found))
        assert stated < -0.2 * scale


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (0 << 8 | 1, "has panel 0; expected 1 to 12"),
        (1 << 8 | 3, "message at epoch 1 is 3; expected 0 to 1, or 2 from a device that is not"),
        (3 << 8 | 7, "message at epoch 1 is 7; expected 0 to 3, or 4 from a device that is not"),
    ],
)
def test_impossible_messages_are_rejected(word: int, message: str) -> None:
    law = calibrate_sampled(ONCE, EPOCHS)
    aggregator = SampledPanelsAggregator(law, ONCE)
    with pytest.raises(ValueError, match=message):
        aggregator.add(1, np.array([[word]], np.uint16), None)
    assert aggregator.to_bytes() == SampledPanelsAggregator(law, ONCE).to_bytes()
