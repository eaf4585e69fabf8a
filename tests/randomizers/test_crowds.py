"""Test crowds: exact privacy of their sizes, and the messages of devices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.crowds import (
    CrowdCounts,
    CrowdDevices,
    CrowdsLaw,
    sum_rounded_up,
)
from dpstream.randomizers.crowds.calibration import (
    calibrate,
    decay_of,
    delta_of_counts,
    law_of_lost,
    most_lost,
)
from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.single_message import (
    SingleMessage,
    SingleMessageLaw,
    SingleMessageParameters,
)
from dpstream.randomizers.single_message.calibration import calibrate as calibrate_messages
from dpstream.randomizers.single_message.calibration import epsilon_with

Law = Mapping[int, Fraction]


def law_of_left(counts: CrowdCounts, size: int, decay: Fraction | None = None) -> Law:
    """Return the distribution of a crowd's remaining messages, by enumeration of the table.

    Args:
        decay: Decay of the noise, if different from that of the job.
    """
    table = discrete_laplace_table(decay or counts.ratio)
    law: dict[int, Fraction] = {}
    for index, (low, high) in enumerate(pairwise((0, *table.bounds))):
        left = max(0, min(size, size + table.first + index - counts.shift))
        law[left] = law.get(left, Fraction()) + Fraction(high - low, 1 << TABLE_BITS)
    return law


def excess(one: Law, other: Law, factor: Fraction) -> Fraction:
    """Return the least delta with which one distribution is within a factor of the other."""
    gaps = (mass - factor * other.get(left, Fraction()) for left, mass in one.items())
    return sum((gap for gap in gaps if gap > 0), Fraction())


def is_private(counts: CrowdCounts, size: int, decay: Fraction | None = None) -> bool:
    """Return whether adding or removing a user of a crowd costs at most half of epsilon and delta.

    A user who moves from one crowd to another then costs epsilon and delta.
    """
    less, more = law_of_left(counts, size, decay), law_of_left(counts, size + 1, decay)
    factor = 1 / counts.ratio
    spent = excess(less, more, factor), excess(more, less, factor)
    return sum(spent, Fraction()) <= Fraction(counts.delta)


def test_shift_and_number_of_deleted_messages_match_the_paper() -> None:
    counts = calibrate(1.0, 1e-6, 1)
    assert (counts.shift, counts.epsilon) == (30, 1.0)
    decay = math.exp(-0.5)
    clamped = decay**31 / (1 + decay)
    assert clamped == pytest.approx(1.15e-7, rel=5e-3)
    table = discrete_laplace_table(counts.ratio)
    above = 1 - Fraction(table.bounds[counts.shift - table.first], 1 << TABLE_BITS)
    assert float(above) == pytest.approx(clamped, rel=1e-9)
    assert most_lost(counts, 100) == pytest.approx(76.5, abs=0.05)
    lost = law_of_lost(counts.ratio, counts.shift)
    too_many = Fraction(sum(lost[77:]), 1 << TABLE_BITS)
    assert 100 * too_many <= Fraction(1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1.0, 1e-6), (0.5, 1e-7), (2.0, 0.05), (0.2, 1e-3), (5.0, 1e-9)]
)
def test_crowd_sizes_after_deletion_of_messages_are_private(epsilon: float, delta: float) -> None:
    counts = calibrate(epsilon, delta, 1)
    sizes = [*range(5), counts.shift - 1, counts.shift, counts.shift + 3, 4 * counts.shift, 1000]
    assert all(is_private(counts, size) for size in sizes)
    assert not is_private(counts, 1000, decay=counts.ratio**2), "half of the noise is not enough"
    without_shift = CrowdCounts(counts.decay, 1, counts.delta)
    assert epsilon > 1 or not is_private(without_shift, 1000)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.3, 1e-4), (4.0, 1e-8)])
def test_delta_of_crowd_sizes_is_exact(epsilon: float, delta: float) -> None:
    counts = calibrate(epsilon, delta, 1)
    size = 10_000
    less, more = law_of_left(counts, size), law_of_left(counts, size + 1)
    factor = 1 / counts.ratio
    both = excess(less, more, factor) + excess(more, less, factor)
    assert delta_of_counts(counts.ratio, counts.shift) == both <= Fraction(delta)


@pytest.mark.parametrize("shift", [0, 1, 30, 127, 128, 129, 200])
def test_number_of_deleted_messages_follows_the_noise(shift: int) -> None:
    table, law = discrete_laplace_table(Fraction(1, 2)), law_of_lost(Fraction(1, 2), shift)
    expected = Counter[int]()
    for noise, (low, high) in enumerate(pairwise((0, *table.bounds)), start=table.first):
        expected[max(0, shift - noise)] += high - low
    assert {lost: mass for lost, mass in enumerate(law) if mass} == dict(+expected)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.7])
def test_decay_of_the_noise_of_crowd_sizes_is_rounded_up(epsilon: float) -> None:
    decay = decay_of(epsilon)
    counts = calibrate(epsilon, 1e-6, 1)
    assert counts.epsilon <= epsilon < counts.epsilon * (1 + 1e-14)
    assert float(decay) == pytest.approx(math.exp(-epsilon / 2), rel=1e-15)


def test_losses_of_all_epochs_together_spend_at_most_delta() -> None:
    alone, many = calibrate(1.0, 1e-6, 1), calibrate(1.0, 1e-6, 200)
    assert many.shift > alone.shift
    assert 200 * delta_of_counts(many.ratio, many.shift) <= Fraction(1e-6)
    assert 200 * delta_of_counts(alone.ratio, alone.shift) > Fraction(1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (math.inf, 1e-6), (1.0, 0.0)])
def test_epsilon_or_delta_out_of_range_is_rejected(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"(epsilon|delta) is .*; expected"):
        calibrate(epsilon, delta, 1)


def law_of(crowds: int, items: int = 1, minimum: int = 3) -> CrowdsLaw:
    parameters = SingleMessageParameters(1.0, 0.01, ("a", "b", "c"), items=items)
    messages = calibrate_messages(parameters, 2, minimum, 2)
    return CrowdsLaw(messages, crowds, calibrate(0.5, 0.01, 2))


def devices_of(law: CrowdsLaw, count: int) -> CrowdDevices:
    assert isinstance(law.contents, SingleMessageLaw)
    devices = CrowdDevices(law, SingleMessage(law.contents))
    devices.enroll(count, seeded_generator(1))
    return devices


@pytest.mark.parametrize("crowds", [1, 255, 256, 4096])
def test_messages_begin_with_the_crowd_and_are_sorted_by_crowd(crowds: int) -> None:
    law = law_of(crowds)
    numbers = np.unique(np.linspace(0, crowds, 300, dtype=np.int64))
    messages = np.zeros((len(numbers), 1), np.uint8)
    words = law.messages_of(numbers, messages)
    assert words.shape == (len(numbers), law.message_format.width)
    assert words.dtype == law.message_format.dtype
    np.testing.assert_array_equal(law.crowds_of(words), numbers)
    order = np.lexsort(words.T[::-1])
    np.testing.assert_array_equal(order, np.arange(len(numbers)))


def test_device_sends_one_message_in_its_crowd() -> None:
    """Values are numbered by crowd: first the crowd without an item, then its items a, b and c."""
    law = law_of(2, items=2)
    devices = devices_of(law, 7)
    values = np.array([[0, 0, 0], [1, 0, 0], [0, 5, 7], [5, 6, 8], [3, 6, 7], [4, 2, 1], [8, 8, 8]])
    words = devices.report(1, values, None, seeded_generator(2))
    assert law.crowds_of(words).tolist() == [0, 1, 2, 2, 1, 1, 2]
    alone = SingleMessage(law.contents)  # type: ignore[arg-type]
    alone.enroll(7, seeded_generator(1))
    items = np.array([[0, 0], [0, 0], [2, 0], [1, 3], [2, 0], [3, 1], [3, 0]])
    expected = alone.report(1, items, None, seeded_generator(2))
    np.testing.assert_array_equal(words[:, law.digits :], expected)
    present = np.array([True, False] * 3 + [True])
    absent = values.copy()
    absent[~present] = 999  # Values of absent devices are ignored.
    words = devices.report(2, absent, present, seeded_generator(3))
    assert law.crowds_of(words).tolist() == [0, 2, 1, 2]
    restored = CrowdDevices(
        law,
        SingleMessage.restore(law.contents, devices.state_arrays(), 2),  # type: ignore[arg-type]
    )
    assert (restored.population, restored.epoch) == (7, 2)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.array([[9, 0]]), "a value at epoch 1 is out of range; expected 0 to 8"),
        (np.array([[-1, 0]]), "a value at epoch 1 is out of range; expected 0 to 8"),
        (np.array([[2, 3]]), "has 2 items in one crowd at epoch 1; expected at most 1"),
        (np.array([[2.0, 3.0]]), "expected integers"),
        (np.array([2]), r"expected \(1, slots\)"),
    ],
)
def test_invalid_values_are_rejected(values: NDArray[np.integer], problem: str) -> None:
    devices = devices_of(law_of(2), 1)
    with pytest.raises(ValueError, match=problem):
        devices.report(1, values, None, seeded_generator(1))
    assert devices.epoch == 0


def test_guarantee_sums_the_losses_of_messages_and_of_crowd_sizes() -> None:
    law = law_of(2)
    messages, counts = law.contents, law.counts
    assert isinstance(messages, SingleMessageLaw)
    guarantee = devices_of(law, 1).guarantee
    assert guarantee.epsilon == sum_rounded_up(messages.epsilon, counts.epsilon)
    assert guarantee.delta == sum_rounded_up(messages.delta, counts.delta)
    stream = sum_rounded_up(messages.stream_epsilon, counts.epsilon, counts.epsilon)
    assert guarantee.stream_epsilon == stream
    assert "any two crowds" in guarantee.neighbors
    # A user who changes the crowd has a message in two windows.
    assert epsilon_with(messages, messages.minimum, 2) <= 1.0
    alone = calibrate_messages(SingleMessageParameters(1.0, 0.01, ("a", "b", "c")), 2, 3)
    assert epsilon_with(alone, 3, 2) > 1.0


def test_sums_of_losses_are_rounded_up() -> None:
    for losses in ((0.1, 0.2), (1e-6, 1e-7), (1.0, 2.0**-60)):
        assert Fraction(sum_rounded_up(*losses)) >= sum(map(Fraction, losses))
