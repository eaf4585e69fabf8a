"""Panels whose answers the shuffler sums: releases, estimates, and the error of means."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.panel_changes import PanelWindows
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.aggregators.shuffled_panels import ShuffledPanelsAggregator
from dpstream.pipeline.protocols.panels import PanelsForecast, panel_domain
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.panels import (
    ONE,
    PanelDevices,
    PanelGroup,
    PanelQuestion,
    PanelsLaw,
    ShuffledPanelsParameters,
)
from dpstream.randomizers.panels.calibration import calibrate_shuffled
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import SUM_ZERO

USERS, EPOCHS = 4_000, 6
GROUPS = PanelGroup({"os": "ios"}), PanelGroup({"os": "web"})
QUESTIONS = PanelQuestion("active", "boolean"), PanelQuestion("spent", "mean", 0.0, 10.0)
PARAMETERS = ShuffledPanelsParameters(1.0, 2, QUESTIONS, GROUPS, (("os",),), delta=1e-6)


@pytest.fixture(scope="module")
def law() -> PanelsLaw:
    return calibrate_shuffled(PARAMETERS, EPOCHS, 100)


def released(law: PanelsLaw, run: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield epochs, the answers of all users, and the release of the shuffler."""
    rng, devices = seeded_generator(7, run), PanelDevices(law)
    devices.enroll(USERS, rng, {"group": np.arange(USERS) % 2})
    numbers = rng.random(USERS) * ONE
    for epoch in range(1, EPOCHS + 1):
        active = (np.arange(USERS) < 1_000) & (epoch > 2)
        values = np.stack([active, numbers], axis=1).astype(np.int64)
        words = devices.report(epoch, values, None, rng)
        law.check_messages(epoch, words)
        yield epoch, values, law.noisy_sums(words, None, rng)


def estimates(law: PanelsLaw, run: int) -> Iterator[tuple[np.ndarray, PanelEstimates]]:
    aggregator = ShuffledPanelsAggregator(law, PARAMETERS)
    people, domain = Participation.constant(EPOCHS, USERS), panel_domain(PARAMETERS)
    for epoch, values, release in released(law, run):
        aggregator.add(epoch, release, None)
        found = aggregator.estimate(epoch, people)
        assert found is not None
        yield domain.ground_truth(values, np.arange(USERS) % 2), found


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_word_of_a_single_panel_is_that_of_its_law(question: PanelQuestion) -> None:
    parameters = ShuffledPanelsParameters(1.0, 2, (question,), delta=1e-6)
    law = calibrate_shuffled(parameters, EPOCHS, 100)
    assert law.message_format == law.summed_laws[0].message_format
    assert law.message_format.dtype.itemsize == 2
    devices, part = PanelDevices(law), law.questions[0].mechanism.devices(law.summed_laws[0])
    values = np.arange(300)[:, None] % 2 * (ONE // 3 if question.answer == "mean" else 1)
    for each in (devices, part):
        each.enroll(300, seeded_generator(1))
    words, own = (
        each.report(1, given, None, seeded_generator(2))
        for each, given in ((devices, values), (part, values[:, 0]))
    )
    np.testing.assert_array_equal(words, own)


@pytest.mark.parametrize(
    ("questions", "groups"), [(QUESTIONS, ()), (QUESTIONS[:1], GROUPS)], ids=["questions", "groups"]
)
def test_word_of_several_panels_has_the_number_of_the_panel_above_that_of_the_law(
    questions: tuple[PanelQuestion, ...], groups: tuple[PanelGroup, ...]
) -> None:
    law = calibrate_shuffled(
        ShuffledPanelsParameters(1.0, 2, questions, groups, delta=1e-6), EPOCHS, 100
    )
    assert (law.message_format.dtype.itemsize, law.shift) == (4, 16)
    devices = PanelDevices(law)
    devices.enroll(300, seeded_generator(1), {"group": np.arange(300) % law.groups})
    words = devices.report(1, np.zeros((300, len(questions)), int), None, seeded_generator(2))
    assert set(np.unique(words >> 16)) == {1, 2}


def test_a_release_has_the_heads_of_every_panel_and_sums_with_noise(law: PanelsLaw) -> None:
    _, _, release = next(released(law, 0))
    assert release.shape == (1, 2 * law.panels)
    assert release[0, :4].sum() == USERS
    words = np.full((10, 1), (2 << 16) + (1 << 15), np.uint32)
    first, again = (law.noisy_sums(words, None, seeded_generator(each))[0] for each in (1, 2))
    assert first[:4].tolist() == [0, 10, 0, 0]
    # Every panel has noise, and none has the same.
    assert len({*first[4:].tolist(), *again[4:].tolist()}) == 8
    deviation = law.summed_laws[0].deviation
    noise = (first[4:].astype(np.int64) - SUM_ZERO) / deviation
    assert (np.abs(noise) < 6).all()


def test_counted_messages_are_released_like_single_ones(law: PanelsLaw) -> None:
    words = np.array([[(1 << 16) + 40_000], [(4 << 16) + 30_000]], np.uint32)
    counts = np.array([3, 2], np.uint32)
    repeated = np.repeat(words, counts, axis=0)
    one, other = (
        law.noisy_sums(sent, times, seeded_generator(3))
        for sent, times in ((words, counts), (repeated, None))
    )
    np.testing.assert_array_equal(one, other)


def test_one_message_changes_one_panel_only(law: PanelsLaw) -> None:
    """Parallel composition: all other sums, and all heads, are the same for any value."""
    words = np.array([[(1 << 16) + 32_768], [(3 << 16) + 32_768]], np.uint32)
    other = words.copy()
    other[1] += 500
    one, two = (law.noisy_sums(sent, None, seeded_generator(4))[0] for sent in (words, other))
    assert np.flatnonzero(one != two).tolist() == [4 + 2]
    assert two[6] - one[6] == 500


@pytest.mark.parametrize(
    ("word", "problem"),
    [((5 << 16) + 32_768, "has panel 5"), (32_768, "has panel 0"), (1 << 16, "out of range")],
)
def test_messages_of_no_device_are_rejected(law: PanelsLaw, word: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        law.check_messages(1, np.array([[word]], np.uint32))


def test_state_reads_back_and_merges(law: PanelsLaw) -> None:
    whole, parts = (ShuffledPanelsAggregator(law, PARAMETERS) for _ in range(2))
    for epoch, _, release in released(law, 1):
        whole.add(epoch, release, None)
        part = ShuffledPanelsAggregator(law, PARAMETERS)
        part.add(epoch, release, None)
        parts.merge(ShuffledPanelsAggregator.from_bytes(law, PARAMETERS, part.to_bytes()))
    assert parts.to_bytes() == whole.to_bytes()
    for cut in (4, 20, len(whole.to_bytes()) - 1):
        with pytest.raises(ValueError, match=r"truncated|bytes long"):
            ShuffledPanelsAggregator.from_bytes(law, PARAMETERS, whole.to_bytes()[:cut])


@pytest.mark.slow
def test_intervals_hold_and_would_not_with_half_the_width(law: PanelsLaw) -> None:
    errors = np.array(
        [
            (found.values - truth) / found.standard_errors
            for run in range(60)
            for truth, found in estimates(law, run)
        ]
    )
    counts, means = errors[:, :3], errors[:, 3:]
    assert 0.93 < (np.abs(counts) < 1.96).mean() < 0.98
    assert (np.abs(counts) < 0.98).mean() < 0.8
    # The variance of numbers is bounded from above, by S (1 - S): users are asked at random.
    assert (np.abs(means) < 1.96).mean() > 0.94
    assert np.abs(errors.mean(axis=0)).max() < 0.4


def moving_numbers(kind: str, seed: int) -> Iterator[np.ndarray]:
    """Yield positions of many users' numbers at 52 epochs, int64, shape (users, 1)."""
    rng = np.random.default_rng(seed)
    first = now = rng.beta(2.0, 6.0, MANY)
    for epoch in range(52):
        if kind == "every epoch" or (kind == "three times" and epoch in (10, 20, 35)):
            now = rng.beta(2.0, 6.0, MANY)
        elif kind == "by 5 %":
            now = np.clip(first + rng.normal(0, 0.045, MANY), 0, 1)
        yield np.floor(now * ONE).astype(np.int64)[:, None]


MANY = 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "max_changes", "expected"),
    [("three times", 4, 22.0), ("by 5 %", 4, 22.0), ("every epoch", 52, 30.6)],
)
def test_error_of_a_mean_is_that_of_one_noisy_sum(
    kind: str, max_changes: int, expected: float
) -> None:
    """In users, whatever their number; thresholds would add 61, and 158 of 100,000 users."""
    parameters = ShuffledPanelsParameters(1.0, max_changes, QUESTIONS[1:], delta=1e-6)
    law, errors, stated = calibrate_shuffled(parameters, 52, 100), [], []
    predicted = PanelsForecast(law, parameters, 52).standard_errors(MANY)
    assert np.sqrt(np.square(predicted).mean()) == pytest.approx(expected, rel=0.01)
    people = Participation.constant(52, MANY)
    for run in range(10):
        rng, devices = seeded_generator(11, run), PanelDevices(law)
        aggregator = ShuffledPanelsAggregator(law, parameters)
        devices.enroll(MANY, rng)
        for epoch, values in enumerate(moving_numbers(kind, run), start=1):
            words = devices.report(epoch, values, None, rng)
            aggregator.add(epoch, law.noisy_sums(words, None, rng), None)
            found = aggregator.estimate(epoch, people)
            assert found is not None
            errors.append((found.values[0] / 10 - values.mean() / ONE) * MANY)
            stated.append(found.standard_errors[0] / 10 * MANY)
    np.testing.assert_allclose(stated[:52], predicted, rtol=1e-9)
    # Errors of an epoch remain in later ones: some 70 of 520 are independent.
    assert np.sqrt(np.square(errors).mean()) == pytest.approx(expected, rel=0.25)
    held = np.abs(errors) < 1.96 * np.array(stated)
    assert 0.91 < held.mean() < 0.99
    assert (np.abs(errors) < 0.98 * np.array(stated)).mean() < 0.8


def test_rounding_of_numbers_is_part_of_their_error_without_a_boost() -> None:
    parameters = ShuffledPanelsParameters(1.0, 2, QUESTIONS, delta=1e-6)
    law = calibrate_shuffled(parameters, 1, 100)
    assert law.summed_laws[0].boost == 0
    aggregator, people = ShuffledPanelsAggregator(law, parameters), Participation.constant(1, 20)
    aggregator.add(1, np.array([[10, 10, SUM_ZERO, SUM_ZERO]], np.uint64), None)
    found = aggregator.estimate(1, people)
    assert found is not None
    booleans, numbers = np.square(found.standard_errors * [1, 2])
    # Twice as many users as are asked: the variance of a sum of ten rounded messages, times four.
    assert numbers - booleans == pytest.approx(4 * 10 / 4 / 256**2, rel=1e-6)


def test_error_of_a_mean_over_epochs_is_that_of_its_noisy_sums() -> None:
    parameters = ShuffledPanelsParameters(1.0, 2, QUESTIONS[1:], GROUPS, (("os",),), delta=1e-6)
    law, window = calibrate_shuffled(parameters, 8, 100), 4
    aggregator, people = ShuffledPanelsAggregator(law, parameters), Participation.constant(8, USERS)
    windows = PanelWindows(law, parameters)
    for epoch in range(1, 9):
        if epoch == 5:
            windows.open_window()
        heads = [1_000, USERS - 1_000]
        aggregator.add(epoch, np.array([[*heads, SUM_ZERO, SUM_ZERO]], np.uint64), None)
        windows.next(aggregator.estimate(epoch, people), USERS)
    summed = law.summed_laws[0]
    sums = Kernel(summed.boost, summed.decay).window_variances(8, window)[-1]
    sizes, noises = np.array([USERS, *heads]), np.array([2, 1, 1])
    noise = noises * summed.noise.variance + sizes / 4
    np.testing.assert_allclose(windows.variance, (10 / 256 / sizes) ** 2 * noise * sums, rtol=1e-6)
