"""Test estimates from message counts over time, with gaps and absences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.shuffled_counts import ShuffledCountsAggregator, predicted_deviations
from dpstream.aggregators.shuffled_item_counts import ShuffledItemCountsAggregator
from dpstream.aggregators.shuffled_level_counts import ShuffledLevelCountsAggregator
from dpstream.aggregators.shuffled_value_stream import ShuffledValueStreamAggregator
from dpstream.randomizers.accounting.boosted_counts import BoostedReports
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw
from dpstream.randomizers.item_domains import Numbers
from dpstream.randomizers.shuffled_counts import (
    Calibration,
    ShuffledCountsLaw,
    ShuffledCountsParameters,
)
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import (
    calibration as of_levels,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import MOST_SUM, SUM_ZERO
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    calibration as of_sums,
)

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


def of_items() -> ShuffledItemCountsAggregator:
    held, left = (CellNoiseLaw("poisson", mean, MINIMUM) for mean in (60.0, 30.0))
    return ShuffledItemCountsAggregator(
        ShuffledItemCountsLaw(EPOCHS, 20, 1.0, 1e-6, 3, 2, 23, held, left)
    )


def of_numbers(**more: Any) -> ShuffledLevelCountsAggregator:
    requested = ShuffledCountsParameters(1.0, 1e-6, domain=Numbers(0, 80, 8), **more)
    return ShuffledLevelCountsAggregator(of_levels.calibrate(requested, EPOCHS, MINIMUM))


def of_noisy_sums() -> ShuffledValueStreamAggregator:
    requested = ShuffledCountsParameters(4, 1e-3, 2, dummies="shuffle")
    return ShuffledValueStreamAggregator(of_sums.calibrate(requested, EPOCHS, MINIMUM))


def word(steps: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([[SUM_ZERO + steps]], np.uint64)


@pytest.mark.parametrize(
    ("aggregator", "values"),
    [
        (of_items(), lambda found: found.values.tolist()),
        (of_numbers(), lambda found: found.range(0, 2).value),
        (of_numbers(max_changes=3, boost=1), lambda found: found.range(0, 2).value),
        (of_noisy_sums(), lambda found: found.value),
    ],
    ids=["items", "numbers", "boosted numbers", "noisy sums"],
)
def test_suppressed_epoch_repeats_the_estimate_with_a_gap_flag(
    aggregator: Any, values: Callable[[Any], Any]
) -> None:
    participation = Participation.constant(EPOCHS, 100)
    participation.set(4, MINIMUM - 1, 100)
    for epoch in (1, 2, 3, 5):
        if isinstance(aggregator, ShuffledValueStreamAggregator):
            aggregator.add(epoch, word(7 * epoch), None)
        else:
            first = np.zeros((1, 1), aggregator.law.message_format.dtype)
            aggregator.add(epoch, first, np.array([7 * epoch], np.uint32))
    found = [aggregator.estimate(epoch, participation) for epoch in range(2, 6)]
    assert [each.flags for each in found] == [(), (), (GAP,), ()]
    assert values(found[2]) == values(found[1]) != values(found[0])
    assert values(found[3]) != values(found[2])


def test_epoch_has_no_estimate_if_no_earlier_epoch_was_released() -> None:
    participation = Participation.constant(EPOCHS, 100)
    participation.set(1, MINIMUM - 1, 100)
    for aggregator in (of_items(), of_numbers()):
        assert aggregator.estimate(1, participation) is None


def test_invalid_sums_are_rejected() -> None:
    aggregator = of_noisy_sums()
    for wrong in (MOST_SUM + 1, -MOST_SUM - 1, -SUM_ZERO, SUM_ZERO):
        with pytest.raises(ValueError, match=f"sum at epoch 1 is {SUM_ZERO + wrong}"):
            aggregator.add(1, word(wrong), None)
    with pytest.raises(ValueError, match="33 sums at epoch 1; expected at most 32"):
        aggregator.add(1, word(0), np.array([33], np.uint32))
    assert aggregator.to_bytes() == b""
