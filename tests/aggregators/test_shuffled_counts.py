"""Test estimates from message counts over time, with gaps and absences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.shuffled_counts import ShuffledCountsAggregator, predicted_deviations
from dpstream.randomizers.accounting.boosted_counts import BoostedReports
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw
from dpstream.randomizers.shuffled_counts import Calibration, ShuffledCountsLaw

MINIMUM = 50
EPOCHS = 12


def law(boost: int, *, shape: float | None = None, by_stage: bool = False) -> ShuffledCountsLaw:
    changes = 2 if boost else 0
    kind: DummyLaw = "poisson" if shape is None else "negative_binomial"
    noise = CellNoiseLaw("shuffle" if by_stage else kind, 1_000.0, MINIMUM, shape)
    calibration: Calibration = "rigorous" if boost else "exact"
    return ShuffledCountsLaw(EPOCHS, 1.0, 1e-6, changes, boost, calibration, noise)


def counted(law: ShuffledCountsLaw, messages: dict[int, int]) -> ShuffledCountsAggregator:
    aggregator = ShuffledCountsAggregator(law)
    for epoch, count in messages.items():
        aggregator.add(epoch, np.zeros((1, 1), np.uint8), np.array([count], np.uint32))
    return aggregator


def test_constant_messages_are_subtracted_from_the_count() -> None:
    aggregator = counted(law(3), {1: 300 + 2_000 + 40 + 120, 2: 300 + 2_000 + 40})
    everybody = Participation.constant(EPOCHS, 100)
    for epoch in (1, 2):
        estimate = aggregator.estimate(epoch, everybody)
        assert estimate is not None
        assert estimate.value == pytest.approx(40)
        # A quarter of an epoch's noise enters the estimate; noise of later epochs is averaged.
        kept = (3 / 4) ** 2
        variance = 2_000 * (1 - kept**epoch) / 7
        assert estimate.standard_error == pytest.approx(math.sqrt(variance))
        assert estimate.ci95_high == pytest.approx(40 + NORMAL_95 * math.sqrt(variance))
        assert estimate.ci95_low == pytest.approx(40 - NORMAL_95 * math.sqrt(variance))
        assert (estimate.population, estimate.flags) == (100, ())
    assert aggregator.estimate(2, everybody).reports == 2_340  # type: ignore[union-attr]


def test_suppressed_epoch_is_flagged_and_its_changes_appear_gradually() -> None:
    participation = Participation.constant(EPOCHS, 100)
    messages = dict.fromkeys(range(1, EPOCHS + 1), 300 + 2_000 + 40)
    messages[1] += 120
    # Epoch 3 had too few devices. By then 20 more devices had value 1, and none more in epoch 4.
    del messages[3]
    participation.set(3, MINIMUM - 1, 100)
    for epoch in range(4, EPOCHS + 1):
        messages[epoch] += 20
    aggregator = counted(law(3), messages)
    found = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    values = [estimate.value for estimate in found if estimate is not None]
    missing = [20 * (3 / 4) ** later for later in range(EPOCHS - 2)]
    assert values == pytest.approx([40, 40, *(60 - each for each in missing)])
    assert [estimate.flags for estimate in found if estimate] == [
        (GAP,) if epoch == 3 else () for epoch in range(1, EPOCHS + 1)
    ]
    second, third = found[1], found[2]
    assert second is not None
    assert third is not None
    assert third.standard_error == second.standard_error
    assert third.reports == 0


@pytest.mark.parametrize("boost", [0, 1, 4])
def test_standard_errors_of_estimates_match_planned_errors(boost: int) -> None:
    users = 80
    aggregator, participation = counted(law(boost), {}), Participation.constant(EPOCHS, users)
    estimates = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    published = [estimate.standard_error for estimate in estimates if estimate is not None]
    planned = predicted_deviations(law(boost), EPOCHS, users)
    assert published == pytest.approx(planned)
    variance = law(boost).noise.moments(users)[1]
    assert BoostedReports(EPOCHS, 2, boost).error(variance) == pytest.approx(
        math.sqrt(float(np.square(planned).mean()))
    )


def test_invalid_state_bytes_are_rejected() -> None:
    good = counted(law(0), {1: 5, 3: 7}).to_bytes()
    assert ShuffledCountsAggregator.from_bytes(law(0), good).to_bytes() == good
    one, three = good[:16], good[16:]
    late = counted(law(0), {EPOCHS: 1}).to_bytes().replace(bytes([EPOCHS]), bytes([EPOCHS + 1]), 1)
    for bad in (good[:-1], three + one, one + one, late, one[:8] + bytes(8), one[:8] + b"\xff" * 8):
        with pytest.raises(ValueError, match=r"count|epochs"):
            ShuffledCountsAggregator.from_bytes(law(0), bad)
