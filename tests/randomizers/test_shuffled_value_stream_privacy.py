"""Test the loss of noisy sums between two streams, computed from the noise table.

For every stream, and every reaction to published values, the squares of a device's messages sum to
at most its squared-norm budget. So the contributions of two streams to the sums differ by at most
twice the root of the budget. The loss at that distance is computed exactly, in integers, for one
epoch, and by summing the products of all outcomes for several epochs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.accounting.connected_dots import normal_delta
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.panel_rows import ONE
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MAX_BOOST,
    SUM_ZERO,
    ZERO,
    ShuffledNumberStream,
    ShuffledValueStream,
    ShuffledValueStreamLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate,
    law_with,
)

KERNEL = Kernel(1.0, 0.25)
"""Change kernel whose first messages are multiples of 1/256, so that nothing is rounded."""

# Tables for larger noise take long to compute.
CASES = [
    (8.0, 1e-2),
    pytest.param(4.0, 1e-3, marks=pytest.mark.verify),
    pytest.param(1.0, 1e-3, marks=pytest.mark.verify),
]

REACH = 9
"""Standard deviations; the tail beyond has probability below 2^-61 and counts as certain loss."""
BEYOND = Fraction(1, 1 << 61)


@cache
def law_of(epochs: int, epsilon: float, delta: float) -> ShuffledValueStreamLaw:
    return law_with(KERNEL, ShuffledCountsParameters(epsilon, delta, 2, dummies="shuffle"), epochs)


def farthest(law: ShuffledValueStreamLaw) -> int:
    """Return the maximum difference of two streams' messages at the only epoch that differs."""
    return math.isqrt(4 * law.squared_norm_budget)


@cache
def weights(noise: NormalNoise) -> tuple[int, ...]:
    most = REACH * noise.deviation
    above = [noise.bound(number) for number in range(most + 1)]
    assert (1 << 128) - above[most] < 2**127 * BEYOND
    # The weights are symmetric, and so is the table except for its last entries.
    assert [noise.bound(-1), noise.bound(-3)] == [2**128 - above[0], 2**128 - above[2]]
    right = np.diff(np.array(above, object)).tolist()
    return (*right[::-1], 2 * above[0] - 2**128, *right)


def exact_delta(noise: NormalNoise, shift: int, factor: Fraction) -> Fraction:
    """Return the largest P(outcomes) - factor Q(outcomes) of one sum, where Q is P shifted."""
    held = weights(noise)
    excess = (
        factor.denominator * of_one - factor.numerator * of_other
        for of_one, of_other in zip([*held, *[0] * shift], [*[0] * shift, *held], strict=True)
    )
    total = sum(more for more in excess if more > 0)
    return Fraction(total, factor.denominator << 128) + BEYOND


class Sums:
    """Distributions P and Q of a noisy sum, with their deltas for any factor."""

    def __init__(self, noise: NormalNoise, shift: int) -> None:
        held = np.array([weight / 2**128 for weight in weights(noise)])
        self.one = np.concatenate([held, np.zeros(shift)])
        self.other = np.concatenate([np.zeros(shift), held])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(self.other > 0, self.one / self.other, np.inf)
        order = np.argsort(-ratios, kind="stable")
        self._falling = -ratios[order]
        self._one = np.concatenate([[0.0], np.cumsum(self.one[order])])
        self._other = np.concatenate([[0.0], np.cumsum(self.other[order])])

    def delta(self, factors: NDArray[np.float64]) -> NDArray[np.float64]:
        many = np.searchsorted(self._falling, -factors, side="left")
        with np.errstate(invalid="ignore"):
            found = self._one[many] - np.where(many > 0, factors * self._other[many], 0.0)
        return np.asarray(found, np.float64)

    def likely(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        kept = self.one > 1e-11 * self.one.max()
        return self.one[kept], self.other[kept], float(self.one[~kept].sum())


def delta_of(noise: NormalNoise, shifts: tuple[int, ...], epsilon: float) -> float:
    """Return delta over all outcomes of the sums, one per shift (at most three)."""
    *earlier, last = (Sums(noise, abs(shift)) for shift in shifts)
    one, other, told = np.ones(1), np.ones(1), len(shifts) * float(BEYOND)
    for sums in earlier[1:]:
        one, other, unlikely = sums.likely()
        told += unlikely
    firsts, others, unlikely = earlier[0].likely() if earlier else (np.ones(1), np.ones(1), 0.0)
    for of_one, of_other in zip(firsts, others, strict=True):
        factors = math.exp(epsilon) * of_other / of_one * other / one
        told += float((of_one * one * last.delta(factors)).sum())
    return told + unlikely


def words(law: ShuffledValueStreamLaw, values: NDArray[np.int8]) -> NDArray[np.int64]:
    devices, rng = ShuffledValueStream(law), seeded_generator(1)
    devices.enroll(values.shape[1], rng)
    return np.stack(
        [
            devices.report(epoch, now, None, rng)[:, 0].astype(np.int64) - ZERO
            for epoch, now in enumerate(values, start=1)
        ]
    )


def differences(law: ShuffledValueStreamLaw, epochs: int) -> set[tuple[int, ...]]:
    """Return the possible absolute differences of two streams' messages over all epochs."""
    streams = np.array(list(product((0, 1), repeat=epochs)), np.int8)
    sent = words(law, streams.T).T
    found = {tuple(np.abs(one - other).tolist()) for one, other in combinations(sent, 2)}
    for each in found:
        assert sum(shift**2 for shift in each) <= 4 * law.squared_norm_budget
    return found


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_delta_at_the_largest_distance_is_at_most_the_stated_delta(
    epsilon: float, delta: float
) -> None:
    law = law_of(2, epsilon, delta)
    factor = exponential(epsilon, rounded_up=False)
    assert exact_delta(law.noise, farthest(law), factor) <= Fraction(delta)
    assert exact_delta(law.noise, farthest(law) // 2, factor) < Fraction(delta) / 2
    assert exact_delta(law.noise, farthest(law) * 102 // 100, factor) > Fraction(delta)
    summed = float(Sums(law.noise, farthest(law)).delta(np.exp([epsilon]))[0])
    assert summed == pytest.approx(float(exact_delta(law.noise, farthest(law), factor)), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_no_two_streams_of_two_epochs_exceed_the_stated_loss(epsilon: float, delta: float) -> None:
    law = law_of(2, epsilon, delta)
    lost = [delta_of(law.noise, shifts, epsilon) for shifts in differences(law, 2)]
    assert len(lost) == 4
    assert max(lost) <= delta
    assert max(lost) > delta / 1000, "some pairs of streams have a loss"


@pytest.mark.verify
def test_no_two_streams_of_three_epochs_exceed_the_stated_loss() -> None:
    law = law_of(3, 8.0, 1e-2)
    lost = [delta_of(law.noise, shifts, 8.0) for shifts in differences(law, 3)]
    assert len(lost) > 12
    assert max(lost) <= 1e-2


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_streams_chosen_adaptively_do_not_increase_the_loss(epsilon: float, delta: float) -> None:
    """The first sum determines the distance of the second sums, within the remaining budgets.

    However the squared-norm budgets are divided, two epochs lose as much as one epoch that spends
    the whole budgets.
    """
    law = law_of(2, epsilon, delta)
    far, found = farthest(law), []
    for first in [0, far // 5, far // 2, round(far * math.sqrt(0.5)), 4 * far // 5, far]:
        of_one, of_other, unlikely = Sums(law.noise, first).likely()
        factors = math.exp(epsilon) * of_other / of_one
        left = math.isqrt(4 * law.squared_norm_budget - first**2)
        chosen = np.max(
            [Sums(law.noise, part).delta(factors) for part in (left, left // 2, left // 7, 0)],
            axis=0,
        )
        found.append(float((of_one * chosen).sum()) + unlikely)
    assert max(found) <= delta
    assert min(found) > 0.95 * delta


def test_stream_that_spends_its_norm_budget_fastest_is_limited_by_it() -> None:
    law = calibrate(ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle"), 170, 100)
    rng, devices, count = seeded_generator(2), ShuffledValueStream(law), 300
    devices.enroll(count, rng)
    spent, published = np.zeros(count, np.int64), 0
    for epoch in range(1, law.last_epoch + 1):
        state: dict[str, NDArray[Any]] = devices.state_arrays()
        before, left = state["value"] & 1, law.decay * state["followed"]
        boost = law.boost * (state["changes"] < law.max_changes)
        pulls = [np.abs(now - 0.5 + left + boost * (now - before.astype(float))) for now in (0, 1)]
        values = (pulls[1] > pulls[0]).astype(np.int8)
        values[100:200] = (np.arange(100) * published > epoch) ^ (np.arange(100) % 2)
        values[200:] = rng.integers(0, 2, 100)
        present = np.ones(count, np.bool_) if epoch % 5 else rng.random(count) < 0.5
        words_ = devices.report(epoch, values, present, rng)[:, 0].astype(np.int64) - ZERO
        spent[present] += words_**2
        published += int(words_.sum()) + law.noise.draw(rng)
        assert (spent <= law.squared_norm_budget).all()
        np.testing.assert_array_equal(
            devices.state_arrays()["left"], law.squared_norm_budget - spent
        )
    assert spent.max() > 0.9 * law.squared_norm_budget, "some devices spend almost the whole budget"


def test_noise_shared_by_two_epochs_is_detected() -> None:
    law = law_of(2, 4.0, 1e-3)
    shifts = max(differences(law, 2))
    assert shifts[0] != shifts[1]
    shared = replace(law, deviation=1).noise
    assert delta_of(shared, (abs(shifts[0] - shifts[1]),), 4.0) > 0.99


ASKED = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
LAW = calibrate(ASKED, 170, 100)
DYADIC = law_with(Kernel(1.0, 0.25), replace(ASKED, max_changes=2), 8)


def steps(
    law: ShuffledValueStreamLaw,
    values: NDArray[Any],
    present: NDArray[np.bool_] | None = None,
    seed: int = 1,
    kind: type[ShuffledValueStream] = ShuffledValueStream,
) -> NDArray[np.int64]:
    """Return messages in steps, shape (epochs, devices) like `values`; 0 for absent devices."""
    devices, rng = kind(law), seeded_generator(seed)
    devices.enroll(values.shape[1], rng)
    sent = np.zeros(values.shape, np.int64)
    for epoch, now in enumerate(values, start=1):
        here = np.ones(len(now), np.bool_) if present is None else present[epoch - 1]
        words = devices.report(epoch, now, here, rng)
        law.check_messages(epoch, words)
        sent[epoch - 1, here] = words[:, 0].astype(np.int64) - ZERO
        left = devices.state_arrays()["left"]
        np.testing.assert_array_equal(
            left, law.squared_norm_budget - np.square(sent[:epoch]).sum(axis=0)
        )
    return sent


@pytest.mark.parametrize(
    ("max_changes", "boost", "decay", "squared_norm_budget", "deviation", "planned"),
    [(4, 3.05, 0.43, 110.39, 88.8, 28.5), (6, 2.39, 0.36, 105.12, 86.6, 32.2)],
)
def test_calibrated_constants_match_golden_values(
    max_changes: int,
    boost: float,
    decay: float,
    squared_norm_budget: float,
    deviation: float,
    planned: float,
) -> None:
    law = law_with(Kernel(boost, decay), replace(ASKED, max_changes=max_changes), 170)
    assert law.squared_norm_budget / 256**2 == pytest.approx(squared_norm_budget, abs=0.006)
    assert law.deviation / 256 == pytest.approx(deviation, abs=0.06)
    best = calibrate(replace(ASKED, max_changes=max_changes), 170, 100)
    variances = Kernel(best.boost, best.decay).variances(170)
    assert np.sqrt(variances.mean()) * best.deviation / 256 == pytest.approx(planned, abs=0.05)


def test_noise_is_calibrated_to_the_norm_budget() -> None:
    """Two streams at a distance of 2 sqrt(R) have the loss epsilon and delta."""
    for law in (LAW, DYADIC):
        distance = 2 * np.sqrt(law.squared_norm_budget)
        assert normal_delta(law.epsilon, law.deviation / distance) <= law.delta
        assert normal_delta(law.epsilon, (law.deviation - 1) / distance) > law.delta * (1 - 1e-5)


def test_table_error_above_the_part_of_delta_reserved_for_it_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration.FOR_TABLES", 1e-40
    )
    with pytest.raises(
        ValueError, match=("requires a more precise noise distribution than is available")
    ):
        calibrate(ASKED, 170, 100)


def test_valid_streams_never_exhaust_the_norm_budget() -> None:
    """Enumerate all streams of 8 epochs with at most 2 changes; each message is 256 u, rounded."""
    law = DYADIC
    streams = np.array(list(product((0, 1), repeat=8)), np.int8)
    made = np.abs(np.diff(streams, axis=1, prepend=0)).sum(axis=1)
    streams = streams[made <= 2].T
    sent = steps(law, streams)
    followed, before = np.zeros(streams.shape[1]), np.zeros(streams.shape[1])
    for epoch, now in enumerate(streams):
        followed = followed / 4 + (now - before)
        before = now
        exact = 256 * (now - 0.5 + followed)
        assert (np.abs(sent[epoch] - exact) < 1).all()
    spent = np.square(sent).sum(axis=0).max()
    assert spent <= law.squared_norm_budget
    assert law.squared_norm_budget < 1.02 * spent, "the worst stream spends almost the whole budget"


@pytest.mark.parametrize("law", [LAW, DYADIC], ids=["students", "dyadic"])
def test_no_stream_spends_more_than_the_norm_budget(law: ShuffledValueStreamLaw) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, (law.last_epoch, 400)).astype(np.int8)
    values[:, :100] = np.arange(law.last_epoch)[:, None] % 2
    present = rng.random(values.shape) < 0.8
    present[:, :200] = True
    assert np.square(steps(law, values, present)).sum(axis=0).max() <= law.squared_norm_budget


def test_messages_that_would_exceed_the_norm_budget_are_clipped() -> None:
    law = replace(DYADIC, squared_norm_budget=100_000)
    values = np.tile(np.array([[1], [0]], np.int8), (4, 50))
    sent = steps(law, values)
    spent = np.square(sent).sum(axis=0)
    assert (spent <= law.squared_norm_budget).all()
    assert (spent > law.squared_norm_budget - 2 * 256).all()
    assert (np.abs(sent[0]) == int(np.sqrt(100_000))).all(), "clipped at its root"


def test_device_with_exhausted_norm_budget_sends_only_zeros() -> None:
    law = replace(DYADIC, squared_norm_budget=128**2)
    sent = steps(law, np.zeros((8, 20), np.int8))
    assert (sent[0] == -128).all()
    assert (sent[1:] == 0).all()


def test_rounding_is_unbiased() -> None:
    law = replace(LAW, max_changes=4)
    values = np.zeros((4, 40_000), np.int8)
    values[1:] = 1
    sent = steps(law, values)
    for epoch, lag in ((1, 0), (2, 1), (3, 2)):
        exact = 256 * (0.5 + law.boost * law.decay**lag)
        share = exact % 1
        assert set(np.unique(sent[epoch])) <= {int(exact), int(exact) + 1}
        error = (sent[epoch].mean() - exact) / np.sqrt(share * (1 - share) / values.shape[1])
        assert abs(error) < 7
    assert np.ptp(sent[0]) == 0, "multiples of 1/256 are not rounded"


def test_values_are_tracked_through_changes_that_get_no_boost() -> None:
    values = np.array([[1], [0], [1], [1]], np.int8)
    np.testing.assert_array_equal(
        steps(DYADIC, values)[:, 0], [384, -128 - 192, 128 - 48, 128 - 12]
    )
    present = np.array([[True], [False], [True], [True]])
    absent = np.array([[0], [0], [1], [0]], np.int8)
    np.testing.assert_array_equal(steps(DYADIC, absent, present)[:, 0], [-128, 0, 128, -128 - 256])


def test_first_value_1_of_a_newcomer_counts_as_a_change() -> None:
    devices, rng = ShuffledValueStream(DYADIC), seeded_generator(1)
    devices.enroll(1, rng)
    devices.report(1, np.zeros(1, np.int8), None, rng)
    devices.enroll(1, rng)
    words = devices.report(2, np.array([0, 1], np.int8), None, rng)
    assert (words[:, 0].astype(int) - ZERO).tolist() == [-128, 384]


def test_released_sum_equals_the_messages_plus_noise() -> None:
    words = np.array([[ZERO + 3], [ZERO - 1], [ZERO]], np.uint16)
    counts = np.array([5, 2, 9], np.uint32)
    noise = LAW.noise.draw(seeded_generator(3))
    for given, often, total in ((words, counts, 13), (words, None, 2), (words[:0], None, 0)):
        released = LAW.noisy_sum(given, often, seeded_generator(3))
        assert released.dtype == np.uint64
        assert released.tolist() == [[SUM_ZERO + total + noise]]


def test_messages_out_of_range_are_rejected() -> None:
    most = DYADIC.most
    assert most == 384
    DYADIC.check_messages(8, np.array([[ZERO - most], [ZERO + most]], np.uint16))
    for word in (ZERO - most - 1, ZERO + most + 1, 0, 2**16 - 1):
        with pytest.raises(ValueError, match=f"message {word} at epoch 1"):
            DYADIC.check_messages(1, np.array([[ZERO], [word]], np.uint16))
    for epoch in (0, 9):
        with pytest.raises(ValueError, match="expected 1 to 8"):
            DYADIC.check_messages(epoch, np.zeros((0, 1), np.uint16))


def test_too_many_messages_are_rejected() -> None:
    assert calibrate(replace(ASKED, messages_per_user=20), 20, 100).last_epoch == 20
    with pytest.raises(ValueError, match="messages_per_user is 19; expected at least 20"):
        calibrate(replace(ASKED, messages_per_user=19), 20, 100)


def test_largest_boost_fits_the_message_type() -> None:
    law = replace(DYADIC, boost=MAX_BOOST)
    assert ZERO + law.most == np.iinfo(law.message_format.dtype).max
    with pytest.raises(
        ValueError,
        match=r"boost is 127\.49.* and decay is .*; expected boost 0 to 127\.49",
    ):
        replace(DYADIC, boost=math.nextafter(MAX_BOOST, math.inf))


@pytest.mark.parametrize("complete", [True, False], ids=["always present", "with absences"])
def test_numbers_at_the_ends_of_the_range_are_reported_like_booleans(complete: bool) -> None:
    rng = np.random.default_rng(1)
    law = replace(LAW, max_changes=3)
    values = (rng.random((40, 500)) < 0.3).astype(np.int8)
    present = None if complete else rng.random(values.shape) < 0.8
    np.testing.assert_array_equal(
        steps(law, values, present),
        steps(law, values.astype(np.int64) * ONE, present, kind=ShuffledNumberStream),
    )


# Decay, boost, max_changes and epochs, and the number of equal steps in the range of numbers.
KERNELS = [
    (Kernel(1.0, 0.25), 2, 5, 4),
    (Kernel(1.5, 0.5), 1, 5, 4),
    (Kernel(2.0, 0.4), 2, 6, 2),
    (Kernel(1.0, 0.0), 3, 4, 5),
    (Kernel(1.3, 0.7), 1, 7, 2),
]


@pytest.mark.parametrize(("kernel", "max_changes", "epochs", "parts"), KERNELS, ids=str)
def test_no_stream_of_numbers_needs_more_than_the_norm_budget(
    kernel: Kernel, max_changes: int, epochs: int, parts: int
) -> None:
    """Enumerate all streams on a grid, of any length of path, without the limit of the budget."""
    law = law_with(kernel, replace(ASKED, max_changes=max_changes), epochs)
    unlimited = replace(law, squared_norm_budget=1 << 40)
    streams = np.array(list(product(range(parts + 1), repeat=epochs)), np.int64).T * ONE // parts
    spent = np.square(steps(unlimited, streams, kind=ShuffledNumberStream)).sum(axis=0)
    assert spent.max() <= law.squared_norm_budget
    assert law.squared_norm_budget < 1.05 * spent.max(), "some stream spends almost the budget"
    largest = streams[:, spent.argmax()]
    assert set(largest.tolist()) <= {0, ONE}, "a Boolean spends the most"


def test_path_of_a_number_is_boosted_up_to_its_limit() -> None:
    law = replace(DYADIC, max_changes=1)
    quarter, values = ONE // 4, [1, 0, 3, 3, 1]
    sent = steps(law, np.array([values]).T * quarter, kind=ShuffledNumberStream)[:, 0]
    # Of the change by 3/4, only 1/2 is within the path of length 1.
    followed = np.array([1.0, -1 + 0.25, 2 - 0.1875, 0.453125, 0.11328125]) / 4
    exact = 256 * (np.array(values) / 4 - 0.5 + followed)
    assert (np.abs(sent - exact) < 1).all()


def test_number_that_moved_during_an_absence_is_not_boosted_but_its_path_counts() -> None:
    devices, rng = ShuffledNumberStream(DYADIC), seeded_generator(1)
    devices.enroll(1, rng)
    for epoch, quarters in ((1, 1), (3, 4), (4, 0)):
        words = devices.report(epoch, np.array([quarters * ONE // 4]), None, rng)
        if epoch == 3:
            assert abs(int(words[0, 0]) - ZERO - 256 * (1 - 0.5 + 0.25 / 16)) < 1
    # A path of 1/4 + 3/4 + 1 is all that is boosted; the next change is not.
    assert (devices.state_arrays()["changes"].tolist(), devices.exhausted) == ([2], 0)
    devices.report(5, np.array([1]), None, rng)
    assert (devices.state_arrays()["changes"].tolist(), devices.exhausted) == ([3], 1)


def test_numbers_of_any_stream_stay_within_the_norm_budget() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, ONE, (LAW.last_epoch, 400), endpoint=True)
    values[:, :100] = np.arange(LAW.last_epoch)[:, None] % 2 * ONE
    present = rng.random(values.shape) < 0.8
    present[:, :200] = True
    sent = steps(LAW, values, present, kind=ShuffledNumberStream)
    assert np.square(sent).sum(axis=0).max() <= LAW.squared_norm_budget


@pytest.mark.parametrize("value", [-1, ONE + 1])
def test_numbers_out_of_range_are_rejected(value: int) -> None:
    devices, rng = ShuffledNumberStream(DYADIC), seeded_generator(1)
    devices.enroll(2, rng)
    with pytest.raises(ValueError, match=f"device 1 has value {value} at epoch 1; .* 0 to {ONE}"):
        devices.report(1, np.array([0, value]), None, rng)
    devices.report(1, np.array([0, value]), np.array([True, False]), rng)
