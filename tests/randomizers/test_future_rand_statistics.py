"""Test draws and reports of devices statistically: they fit the mechanism, and only it."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
from scipy import stats

from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10


def test_orders_and_signs_follow_the_mechanism() -> None:
    law = _law(max_changes=2, horizon=4, order_weights=(4, 3, 1))
    devices = FutureRand(law)
    for batch in range(4):
        devices.enroll(50_000, seeded_generator(1, batch))
    arrays = devices.state_arrays()
    drawn = Counter(zip(arrays["order"].tolist(), arrays["signs"][:, 0].tolist(), strict=True))

    def fit(other: FutureRandLaw) -> float:
        expected = {}
        for order, composed in enumerate(other.composed):
            for bits in product((0, 1), repeat=composed.k):
                code = sum(bit << position for position, bit in enumerate(bits))
                probability = float(composed.probability(composed.k - sum(bits)))
                expected[order, code] = 200_000 * probability * other.order_probabilities[order]
        assert drawn.keys() == expected.keys()
        observed = [drawn[key] for key in expected]
        return float(stats.chisquare(observed, list(expected.values())).pvalue)

    assert fit(law) > FALSE_ALARM
    assert fit(_law(max_changes=2, horizon=4, order_weights=(40, 31, 9))) < FALSE_ALARM
    assert fit(_law(max_changes=2, horizon=4, order_weights=(4, 3, 1), epsilon=1.1)) < FALSE_ALARM


def test_exhausted_devices_send_fair_coins() -> None:
    """Values change at every epoch, so devices of order 0 are exhausted at the third."""
    law = _law(max_changes=2, horizon=8, order_weights=(1, 0, 0, 0), epsilon=4.0)
    devices = FutureRand(law)
    devices.enroll(100_000, seeded_generator(4))
    for epoch in range(1, 9):
        values = np.full(100_000, epoch % 2, np.int8)
        signs = devices.report(epoch, values, None, seeded_generator(5, epoch))[:, 0]
        advantage = law.c_gaps[0] * (1 if epoch % 2 else -1) if epoch <= 2 else 0.0
        assert _binomial(signs, (1 + advantage) / 2) > FALSE_ALARM
        assert devices.exhausted == (0 if epoch <= 2 else 100_000)
        if epoch <= 2:
            assert _binomial(signs, (1 + 0.7 * advantage) / 2) < FALSE_ALARM


def _law(
    max_changes: int, horizon: int, order_weights: tuple[int, ...], epsilon: float = 1.0
) -> FutureRandLaw:
    law = calibrate(FutureRandParameters(epsilon, max_changes), horizon)
    return FutureRandLaw(horizon, epsilon, order_weights, law.composed)


def _binomial(signs: np.ndarray[tuple[int], np.dtype[np.uint8]], probability: float) -> float:
    return float(stats.binomtest(int(signs.sum()), len(signs), probability).pvalue)
