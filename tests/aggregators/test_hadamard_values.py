"""Test server-side item counts from symbols, and statistics derived from symbol means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import hadamard

from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.pipeline.protocols.followed_forecasts import HadamardValuesForecast
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValuesLaw,
    HadamardValuesParameters,
)
from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate

EPOCHS = 16
ITEMS = 5


def law_for(items: int = ITEMS, epsilon: float = 2.0, boosted: int = 3) -> HadamardValuesLaw:
    labels = tuple(map(str, range(items)))
    return calibrate(HadamardValuesParameters(epsilon, 3, labels, boosted), EPOCHS)


LAW = law_for()


def states_of_means(
    items: NDArray[np.int64], present: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Return the expected symbol sums of users with the given items, spread equally over rows.

    Args:
        items: Shape (epochs, users), 0 for none.
        present: Shape (epochs,), number of reporting users over all rows.
    """
    law, matrix = LAW.booleans, hadamard(LAW.rows)
    spread = math.sqrt(law.squared_norm_budget) / law.gain
    users = items.shape[1]
    followed, before = np.zeros((LAW.rows, users)), np.zeros((LAW.rows, users))
    made = np.zeros((LAW.rows, users), int)
    states = []
    for now, reports in zip(items, present.tolist(), strict=True):
        tracked = np.where(now > 0, (matrix[:, now] + 1) / 2, 0)
        change = tracked - before
        followed = law.decay * followed + law.boost * change * (made < law.max_changes)
        made += change != 0
        before = tracked
        means = (tracked - 0.5 + followed).mean(axis=1) / spread
        symbols = np.round(8 * means * reports / LAW.rows).astype(np.int64)
        states.append(np.concatenate([[reports], symbols]))
    return states


def aggregator_of(states: list[NDArray[np.int64]]) -> HadamardValuesAggregator:
    entry = np.dtype([("epoch", "<u8"), ("sums", "<i8", (1 + LAW.rows,))])
    entries = [(epoch, sums) for epoch, sums in enumerate(states, 1) if sums[0]]
    return HadamardValuesAggregator.from_bytes(LAW, np.array(entries, entry).tobytes())


class TestEstimates:
    USERS = 1_000
    EVERYBODY = 10**9

    def items(self) -> NDArray[np.int64]:
        rng = np.random.default_rng(3)
        items = np.zeros((EPOCHS, self.USERS), np.int64)
        for user in range(self.USERS):
            first, *others = sorted(rng.choice(np.arange(EPOCHS), 3, replace=False).tolist())
            items[first:, user] = rng.integers(1, ITEMS + 1)
            for epoch in others[: user % 3]:
                items[epoch:, user] = rng.integers(0, ITEMS + 1)
        return items

    def ground_truth(self, items: NDArray[np.int64], population: int) -> NDArray[np.float64]:
        held = (items[:, :, None] == np.arange(1, ITEMS + 1)).mean(axis=1)
        return np.asarray(population * held, np.float64)

    @pytest.mark.parametrize("share", [1, 3])
    def test_counts_follow_from_symbol_means_despite_absent_devices(self, share: int) -> None:
        items = self.items()
        present = np.full(EPOCHS, self.EVERYBODY)
        present[::2] //= share
        aggregator = aggregator_of(states_of_means(items, present))
        participation = Participation.constant(EPOCHS, self.EVERYBODY)
        for epoch, expected in enumerate(self.ground_truth(items, self.EVERYBODY), start=1):
            found = aggregator.estimate(epoch, participation)
            assert found is not None
            # Expected sums are rounded to integers.
            assert found.values == pytest.approx(expected, abs=1e4)
            assert (found.reports, found.flags) == (present[epoch - 1], ())

    def test_standard_errors_match_the_forecast_and_grow_with_absence(self) -> None:
        aggregator = aggregator_of([np.array([400, *[0] * LAW.rows])] * EPOCHS)
        forecast = HadamardValuesForecast(LAW, EPOCHS).standard_errors(400)
        for epoch in range(1, EPOCHS + 1):
            found = aggregator.estimate(epoch, Participation.constant(EPOCHS, 400))
            assert found is not None
            assert found.standard_error == pytest.approx(forecast[epoch - 1])
            assert found.half_width == pytest.approx(NORMAL_95 * forecast[epoch - 1])
            # Four times as many users and the same number of reports: four times the error.
            absent = aggregator.estimate(epoch, Participation.constant(EPOCHS, 1_600))
            assert absent is not None
            assert absent.standard_error == pytest.approx(4 * forecast[epoch - 1])
