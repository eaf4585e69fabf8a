"""Test estimates of panels: errors, sums of groups, small groups, gaps and stored states."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import GAP, Participation
from dpstream.aggregators.panel_changes import PanelChanges, PanelWindows
from dpstream.aggregators.panel_estimates import SMALL_GROUP, PanelEstimates
from dpstream.aggregators.panels import PanelsAggregator
from dpstream.aggregators.sampled_panels import SampledPanelsAggregator
from dpstream.aggregators.shuffled_panels import ShuffledPanelsAggregator
from dpstream.pipeline.protocols.panels import panel_domain
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.panels import (
    ONE,
    PanelDevices,
    PanelGroup,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    SampledPanelsParameters,
    ShuffledPanelsParameters,
)
from dpstream.randomizers.panels.calibration import (
    calibrate,
    calibrate_sampled,
    calibrate_shuffled,
)
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus

FALSE_ALARM = 1e-9
EPOCHS = 3
QUESTIONS = (
    PanelQuestion("wau", "boolean"),
    PanelQuestion("spent", "mean", 10, 30, share=2),
    PanelQuestion("size", "labels", labels=("S", "M", "L")),
)
GROUPS = tuple(PanelGroup({"os": os, "arm": arm}) for os in ("ios", "web") for arm in ("A", "B"))
PARAMETERS = PanelsParameters(4.0, 2, QUESTIONS, GROUPS, (("os",), ("os", "arm")))
LAW = calibrate(PARAMETERS, EPOCHS)
DOMAIN = panel_domain(PARAMETERS)
# Groups have different sizes, and different answers.
SIZES = (2_400, 1_200, 800, 400)
OF_GROUP = np.repeat(np.arange(4), SIZES)


def answers_at(epoch: int, of_group: NDArray[np.intp] = OF_GROUP) -> NDArray[np.int64]:
    """Return answers in which a fixed part of each group has each answer; a third change once."""
    place = np.arange(len(of_group)) % 12
    wau = place < 2 + of_group + 4 * (epoch > 2)
    spent = (place + of_group) * ONE // 16
    size = np.where(place < 6, 1, np.where(place < 6 + epoch, 2, 3))
    return np.stack([wau.astype(np.int64), spent, size], axis=1)


def estimated(
    seed: int, presence: float = 1.0, parameters: PanelsParameters = PARAMETERS
) -> list[PanelEstimates]:
    rng = seeded_generator(seed)
    devices, aggregator = PanelDevices(LAW), PanelsAggregator(LAW, parameters)
    devices.enroll(len(OF_GROUP), rng, {"group": OF_GROUP})
    participation, found = Participation.empty(EPOCHS), []
    for epoch in range(1, EPOCHS + 1):
        present = None if presence == 1 else rng.random(len(OF_GROUP)) < presence
        words = devices.report(epoch, answers_at(epoch), present, rng)
        aggregator.add(epoch, words, None)
        participation.set(epoch, len(words), len(OF_GROUP))
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        found.append(estimate)
    return found


@pytest.mark.parametrize("presence", [1.0, 0.6])
def test_all_rows_are_unbiased_and_have_their_standard_errors(presence: float) -> None:
    runs = [estimated(seed, presence) for seed in range(100)]
    for at in range(EPOCHS):
        truth = DOMAIN.ground_truth(answers_at(at + 1), OF_GROUP)
        errors = np.array([run[at].values - truth for run in runs])
        standardized = errors / np.array([run[at].standard_errors for run in runs])
        means = standardized.mean(axis=0) * math.sqrt(len(runs))
        assert (2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM).all(), means
        squares = np.square(standardized).sum(axis=0)
        # Numbers of a mean spread less than numbers that are either low or high.
        assert (stats.chi2.sf(squares / 1.1, len(runs)) > FALSE_ALARM).all()
        assert (stats.chi2.cdf(squares / 0.9, len(runs)) > FALSE_ALARM).all()
        assert (stats.chi2.sf(4 * squares, len(runs)) < FALSE_ALARM).all()


def test_totals_are_sums_of_groups_and_means_are_weighted_by_size() -> None:
    last = estimated(1)[-1]
    place = {row.label: at for at, row in enumerate(PARAMETERS.rows)}

    def rows(name: str, attributes: Sequence[str]) -> NDArray[np.intp]:
        return np.array([place[f"{name}: {each}"] for each in attributes])

    systems = ("os=ios", "os=web")
    cells = tuple(f"{os}, arm={arm}" for os in systems for arm in "AB")
    assert last.sizes[rows("wau", cells)].tolist() == list(SIZES)
    for parts in (systems, cells):
        for name in ("wau", "size=S", "size=M", "size=L"):
            found = rows(name, parts)
            assert last.values[found].sum() == pytest.approx(last.values[place[name]])
            squares = np.square(last.standard_errors[found]).sum()
            assert math.sqrt(squares) == pytest.approx(last.standard_errors[place[name]])
        found, total = rows("spent", parts), last.values[place["spent"]]
        assert np.average(last.values[found], weights=last.sizes[found]) == pytest.approx(total)
        assert (last.heads[found].sum(), last.heads[found].min() > 0) == (
            last.heads[place["spent"]],
            True,
        )


def test_groups_below_the_minimum_have_no_numbers_but_are_in_the_total() -> None:
    every, some = (
        estimated(1, parameters=replace(PARAMETERS, by_minimum=minimum))[-1]
        for minimum in (400, 401)
    )
    hidden = [at for at, row in enumerate(PARAMETERS.rows) if row.groups == (3,)]
    assert len(hidden) == 5
    assert (every.flags, every.suppressed) == ((), ())
    assert some.flags == (SMALL_GROUP,)
    assert some.suppressed == tuple(at + 1 for at in hidden)
    assert np.isnan(some.values[hidden]).all()
    assert np.isnan(some.standard_errors[hidden]).all()
    shown = [at for at in range(len(PARAMETERS.rows)) if at not in hidden]
    assert some.values[shown].tolist() == every.values[shown].tolist()
    assert some.numbers.tolist() == [at + 1 for at in shown]
    assert some.may_be_of(len(PARAMETERS.rows))
    assert every.may_be_of(len(PARAMETERS.rows))
    assert not np.isfinite(some.intervals_of(np.array([hidden[0] + 1]))).any()
    assert [item for item, _ in some.of_items([1, hidden[0] + 1])] == [1]


def test_groups_without_users_are_not_flagged_as_small() -> None:
    aggregator, participation = PanelsAggregator(LAW, PARAMETERS), Participation.empty(EPOCHS)
    devices, rng = PanelDevices(LAW), seeded_generator(1)
    devices.enroll(len(OF_GROUP), rng, {"group": np.minimum(OF_GROUP, 2)})
    participation.set(1, len(OF_GROUP), len(OF_GROUP))
    aggregator.add(1, devices.report(1, answers_at(1), None, rng), None)
    estimate = aggregator.estimate(1, participation)
    assert estimate is not None
    assert not estimate.flags
    assert np.isnan(estimate.values).any()


def test_epoch_without_reports_repeats_the_estimates_with_a_gap() -> None:
    aggregator, participation = PanelsAggregator(LAW, PARAMETERS), Participation.empty(EPOCHS)
    devices, rng = PanelDevices(LAW), seeded_generator(1)
    devices.enroll(len(OF_GROUP), rng, {"group": OF_GROUP})
    participation.set(1, 0, len(OF_GROUP))
    assert aggregator.estimate(1, participation) is None
    aggregator.add(2, devices.report(2, answers_at(2), None, rng), None)
    participation.set(2, len(OF_GROUP), len(OF_GROUP))
    participation.set(3, 0, len(OF_GROUP))
    known, gap = (aggregator.estimate(epoch, participation) for epoch in (2, 3))
    assert known is not None
    assert gap is not None
    assert (known.flags, gap.flags, gap.reports) == ((), (GAP, SMALL_GROUP), 0)
    assert gap.values[0] == known.values[0]
    assert len(gap.numbers) == 5


BOTH = PanelQuestion("wau", "boolean"), PanelQuestion("paid", "boolean")


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (
            PanelsAggregator(
                calibrate(PanelsParameters(1.0, 1, BOTH), 2), PanelsParameters(1.0, 1, BOTH)
            ),
            [1 << 8 | 80] * 100,
        ),
        (
            SampledPanelsAggregator(
                calibrate_sampled(SampledPanelsParameters(1.0, BOTH, reports=1), 2),
                SampledPanelsParameters(1.0, BOTH, reports=1),
            ),
            # Nobody in the second panel is asked.
            [1 << 8] * 50 + [2 << 8 | 2] * 50,
        ),
    ],
)
def test_question_without_answers_can_have_any_number(
    aggregator: PanelsAggregator, words: list[int]
) -> None:
    aggregator.add(1, np.array(words, np.uint16)[:, None], None)
    found = aggregator.estimate(1, Participation.constant(2, 100))
    assert found is not None
    assert [found.values[1], found.standard_errors[1]] == [50, 50]


def test_late_messages_change_earlier_epochs() -> None:
    devices, rng = PanelDevices(LAW), seeded_generator(1)
    devices.enroll(len(OF_GROUP), rng, {"group": OF_GROUP})
    words = [devices.report(epoch, answers_at(epoch), None, rng) for epoch in (1, 2)]
    participation = Participation.constant(EPOCHS, len(OF_GROUP))
    whole, late = PanelsAggregator(LAW, PARAMETERS), PanelsAggregator(LAW, PARAMETERS)
    for epoch in (1, 2):
        whole.add(epoch, words[epoch - 1], None)
        late.add(epoch, words[epoch - 1][::2], None)
    late.estimate(2, participation)
    late.add(1, words[0][1::2], None)
    late.estimate(1, participation)
    late.add(2, words[1][1::2], np.ones(len(words[1][1::2]), np.uint32))
    expected, found = (each.estimate(2, participation) for each in (whole, late))
    assert expected is not None
    assert found is not None
    assert found.to_json() == expected.to_json()


def test_estimates_survive_a_record() -> None:
    estimate = estimated(1, parameters=replace(PARAMETERS, by_minimum=500))[-1]
    record = EstimateRecord(bytes(16), 3, WindowStatus.RELEASED, 0, 9, 9, estimate, {})
    read = EstimateRecord.from_bytes(record.to_bytes())
    assert isinstance(read.estimate, PanelEstimates)
    assert read.to_bytes() == record.to_bytes()
    assert read.estimate.flags == estimate.flags == (SMALL_GROUP,)
    assert np.allclose(read.estimate.intervals, estimate.intervals, rtol=1e-6)
    body = json.loads(json.dumps(estimate.to_json()))
    for changed in ({"sizes": body["sizes"][:-1]}, {"standard_errors": [None] * len(body["rows"])}):
        with pytest.raises(ValueError, match=r"standard.error"):
            PanelEstimates.from_json(body | changed)


def test_labels_of_a_panel_are_negatively_correlated_by_sampling() -> None:
    """Covariance of two labels: the devices that are asked are a sample of the group."""
    last = estimated(1)[-1]
    place = {row.label: at for at, row in enumerate(PARAMETERS.rows)}
    one, other = place["size=S: os=ios, arm=A"], place["size=L: os=ios, arm=A"]
    heads, size = int(last.heads[one]), SIZES[0]
    shares = last.values[one] / size * last.values[other] / size
    assert last.covariance(one, other) == pytest.approx(
        -(size**3) / (size - 1) * (1 / heads - 1 / size) * shares
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (0 << 24 | 88, "has panel 0; expected 1 to 12"),
        (13 << 24 | 88, "has panel 13; expected 1 to 12"),
        (1 << 24 | 7, "message at epoch 1 is 7; expected 8 to 152"),
        (1 << 24 | 256 + 88, "message at epoch 1 is 0; expected 8 to 152"),
        (3 << 24 | 4 << 8 | 88, "row 4 and symbol 88 are out of range"),
    ],
)
def test_impossible_messages_are_rejected(word: int, message: str) -> None:
    aggregator = PanelsAggregator(LAW, PARAMETERS)
    with pytest.raises(ValueError, match=message):
        aggregator.add(1, np.array([[word]], np.uint32), None)
    assert aggregator.to_bytes() == PanelsAggregator(LAW, PARAMETERS).to_bytes()


def test_truncated_and_extended_states_are_rejected() -> None:
    state = PanelsAggregator(LAW, PARAMETERS).to_bytes()
    for wrong in (state[:-1], state + b"0", state[:50] + bytes(8)):
        with pytest.raises(ValueError, match="counts are"):
            PanelsAggregator.from_bytes(LAW, PARAMETERS, wrong)


def runs_over(
    parameters: PanelsParameters, values: Sequence[NDArray[np.int64]], seeds: int
) -> Iterator[list[PanelEstimates]]:
    law, devices_per_run = law_of(parameters, len(values)), len(OF_GROUP)
    participation = Participation.constant(len(values), devices_per_run)
    for seed in range(seeds):
        rng = seeded_generator(seed)
        devices = PanelDevices(law)
        kind = ShuffledPanelsAggregator if law.summed else PanelsAggregator
        aggregator = kind(law, parameters)
        devices.enroll(devices_per_run, rng, {"group": OF_GROUP})
        found = []
        for epoch, now in enumerate(values, 1):
            words = devices.report(epoch, now, None, rng)
            released = law.noisy_sums(words, None, rng) if law.summed else words
            aggregator.add(epoch, released, None)
            estimate = aggregator.estimate(epoch, participation)
            assert estimate is not None
            found.append(estimate)
        yield found


def law_of(parameters: PanelsParameters, epochs: int) -> PanelsLaw:
    if isinstance(parameters, ShuffledPanelsParameters):
        return calibrate_shuffled(parameters, epochs, 100)
    return calibrate(parameters, epochs)


# Without other questions, all of the error of sums is noise.
SUMMED = ShuffledPanelsParameters(4.0, 2, QUESTIONS[1:2], GROUPS, PARAMETERS.by, delta=1e-3)


@pytest.mark.parametrize(
    ("parameters", "asked", "smallest"),
    [(PARAMETERS, [0, 1, 2], (0.4, 0.7)), (SUMMED, [1], (0.9, 0.9))],
    ids=["panels", "sums"],
)
def test_changes_and_means_have_errors_that_are_true_or_too_large(
    parameters: PanelsParameters, asked: list[int], smallest: tuple[float, float]
) -> None:
    """Numbers stay the same, so only noise changes; all other errors are those of every epoch."""
    epochs, lag, window = 8, 2, 4
    law = law_of(parameters, epochs)
    values = [answers_at(1)[:, asked]] * epochs
    truth = panel_domain(parameters).ground_truth(values[0], OF_GROUP)
    changed, means = [], []
    for found in runs_over(parameters, values, 60):
        errors, windows = PanelChanges(law, parameters, lag), PanelWindows(law, parameters)
        deviations = [errors.next(each, each.population) for each in found]
        assert deviations[:lag] == [None] * lag
        last = deviations[-1]
        assert last is not None
        for each in found[:window]:
            windows.next(each, each.population)
        windows.open_window()
        for each in found[window:]:
            windows.next(each, each.population)
        changed.append((found[-1].values - found[-1 - lag].values) / last)
        mean = np.mean([each.values for each in found[window:]], axis=0)
        means.append((mean - truth) / (np.sqrt(windows.variance) / window))
    for standardized, least in zip((np.array(changed), np.array(means)), smallest, strict=True):
        squares = np.square(standardized).sum(axis=0)
        assert (stats.chi2.sf(squares / 1.1, len(standardized)) > FALSE_ALARM).all()
        assert (stats.chi2.cdf(squares / least, len(standardized)) > FALSE_ALARM).all()
