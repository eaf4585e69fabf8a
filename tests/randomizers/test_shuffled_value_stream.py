"""Test shuffled value_stream: messages and charges of a device, and the release."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.accounting.connected_dots import normal_delta
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MAX_BOOST,
    SUM_ZERO,
    ZERO,
    ShuffledValueStream,
    ShuffledValueStreamLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate,
    law_with,
)

ASKED = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
LAW = calibrate(ASKED, 170, 100)
DYADIC = law_with(Kernel(1.0, 0.25), replace(ASKED, max_changes=2), 8)


def steps(
    law: ShuffledValueStreamLaw,
    values: NDArray[np.int8],
    present: NDArray[np.bool_] | None = None,
    seed: int = 1,
) -> NDArray[np.int64]:
    """Return messages in steps, shape (epochs, devices) like `values`; 0 for absent devices."""
    devices, rng = ShuffledValueStream(law), seeded_generator(seed)
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


def test_table_error_above_its_part_of_delta_is_rejected(
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


def test_norm_budget_clips_a_device_that_would_exceed_it() -> None:
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


def test_changes_without_a_boost_are_tracked() -> None:
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


def test_released_sum_is_messages_plus_noise() -> None:
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
