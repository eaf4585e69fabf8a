from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.draws import random_bits
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.parameter_checks import MAX_EPSILON, MIN_EPSILON
from dpstream.randomizers.randomness import seeded_generator

HORIZON = 16


class NoCoins:
    """Replace the generator of `report`: every coin is 0."""

    def integers(self, low: int, high: int, size: int, dtype: object) -> NDArray[np.uint64]:
        return np.zeros(size, np.uint64)


NO_COINS = cast(np.random.Generator, NoCoins())


def test_only_zero_partial_sums_are_replaced_by_fair_coins() -> None:
    law = calibrate(FutureRandParameters(1.0, 2), 8)
    steady, changing = (FutureRand(law) for _ in range(2))
    for devices in (steady, changing):
        devices.enroll(5000, seeded_generator(1))
    zeros, ones = np.zeros(5000, np.int8), np.ones(5000, np.int8)
    words = steady.report(1, zeros, None, seeded_generator(2))
    assert np.array_equal(words[:, 0], random_bits(seeded_generator(2), len(words)))
    words = changing.report(1, ones, None, seeded_generator(2))
    leaves = [signs for order, signs in _drawn(changing) if order == 0]
    assert (2 * (words[:, 0] & 1).astype(int) - 1).tolist() == [signs[0] for signs in leaves]


def test_device_uses_signs_in_order_until_it_is_exhausted() -> None:
    law = calibrate(FutureRandParameters(1.0, 12), HORIZON)
    law = FutureRandLaw(HORIZON, 1.0, (1, 0, 0, 0, 0), law.composed)
    devices = FutureRand(law)
    devices.enroll(50, seeded_generator(1))
    partial_sums = []
    for epoch in range(1, HORIZON + 1):
        words = devices.report(epoch, np.full(50, epoch % 2), None, NO_COINS)
        partial_sum = 1 if epoch % 2 else -1
        partial_sums.append(partial_sum * (2 * words[:, 0].astype(int) - 1))
    sent = np.array(partial_sums).T
    assert sent[:, :12].tolist() == [signs for _, signs in _drawn(devices)]
    assert (sent[:, 12:] == np.array([-1, 1, -1, 1])).all()  # coins of 0
    assert devices.exhausted == 50


def test_orders_and_signs_of_a_device_never_change() -> None:
    law = calibrate(FutureRandParameters(1.0, 3), 8)
    devices = FutureRand(law)
    devices.enroll(500, seeded_generator(1))
    before = _drawn(devices)
    for epoch in range(1, 9):
        devices.report(epoch, np.full(500, epoch % 2), None, seeded_generator(2, epoch))
    devices.enroll(10, seeded_generator(3))
    assert _drawn(devices)[:500] == before


def test_order_with_zero_weight_is_never_drawn() -> None:
    law = calibrate(FutureRandParameters(1.0, 2), 8)
    law = FutureRandLaw(law.horizon, law.epsilon, (2, 1, 1, 0), law.composed)
    devices = FutureRand(law)
    devices.enroll(2000, seeded_generator(1))
    assert {order for order, _ in _drawn(devices)} == {0, 1, 2}
    assert law.order_probabilities == (0.5, 0.25, 0.25, 0.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, MIN_EPSILON / 2, MAX_EPSILON * 2, math.nan, True])
def test_epsilon_out_of_range_is_rejected(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon is .*; expected"):
        FutureRandParameters(epsilon, 2)
    FutureRandParameters(MIN_EPSILON, 2)
    FutureRandParameters(MAX_EPSILON, 2)


def _drawn(devices: FutureRand) -> list[tuple[int, list[int]]]:
    arrays = devices.state_arrays()
    bits = np.unpackbits(arrays["signs"].astype(np.uint8), axis=1, bitorder="little")
    return [
        (order, [1 if bit else -1 for bit in row[: devices.law.composed[order].k]])
        for order, row in zip(arrays["order"].tolist(), bits.tolist(), strict=True)
    ]
