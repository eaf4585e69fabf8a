"""Test boosted value reports: messages of a device, and the distance between two streams.

If the shuffler adds the dummies, devices send only real messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from dpstream.randomizers.accounting.boosted_counts import BoostedReports
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import (
    ShuffledCounts,
    ShuffledCountsLaw,
    ShuffledCountsParameters,
)
from dpstream.randomizers.shuffled_counts.calibration import calibrate, epsilon_with

EPOCHS = 8
DELTA = 1e-6
RNG = seeded_generator(0)


def without_dummies(max_changes: int, boost: int, last_epoch: int = EPOCHS) -> ShuffledCountsLaw:
    return ShuffledCountsLaw(
        last_epoch,
        1.0,
        DELTA,
        max_changes,
        boost,
        "rigorous" if boost else "exact",
        CellNoiseLaw("shuffle", 100.0, 1),
    )


def sent(law: ShuffledCountsLaw, values: Sequence[int | None]) -> list[int]:
    device = ShuffledCounts(law)
    device.enroll(1, RNG)
    return [
        device.report(epoch, np.array([value or 0]), np.array([value is not None]), RNG).messages
        for epoch, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 3 messages, plus the value, plus or minus 3 for each of the first two changes.
        ((0, 1, 1, 0, 0, 1, 0), [3, 7, 4, 0, 3, 4, 3]),
        ((1, 0), [7, 0]),
        # A change during absence counts and is never boosted.
        ((0, None, 1, 0, 1), [3, 0, 4, 0, 4]),
        # A device never knows of a change that was reverted during its absence.
        ((0, None, 0, 1), [3, 0, 3, 7]),
        # A device that returns with the same value reports no change; its next change is boosted.
        ((1, None, 1, 0), [7, 0, 4, 0]),
        ((None, 1, 0, 1), [0, 4, 0, 4]),
    ],
)
def test_devices_send_the_messages_of_worked_examples(
    values: tuple[int | None, ...], expected: list[int]
) -> None:
    assert sent(without_dummies(max_changes=2, boost=3), values) == expected


def test_messages_without_a_boost_equal_the_values() -> None:
    assert sent(without_dummies(0, 0), (0, 1, None, 1, 0)) == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(("max_changes", "boost"), [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2)])
def test_messages_of_two_streams_differ_by_at_most_the_assumed_shifts(
    max_changes: int, boost: int
) -> None:
    """Differences of two streams, with any absences, are weakly majorized by the assumed shifts."""
    last_epoch = 5
    law = without_dummies(max_changes, boost, last_epoch)
    stated = BoostedReports(last_epoch, max_changes, boost).shifts
    worst = sorted((shift for shift, cells in stated.items() for _ in range(cells)), reverse=True)
    bound = np.cumsum(worst)
    attained = np.zeros(last_epoch, np.int64)
    for presence in product((True, False), repeat=last_epoch):
        streams = {
            tuple(value if here else None for value, here in zip(values, presence, strict=True))
            for values in product((0, 1), repeat=last_epoch)
        }
        messages = [np.array(sent(law, stream)) for stream in streams]
        for one, other in combinations(messages, 2):
            largest = np.sort(np.abs(one - other))[::-1].cumsum()
            assert (largest <= bound).all()
            attained = np.maximum(attained, largest)
    # Some pair of streams attains the largest shift.
    assert attained[0] == bound[0]


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"boost": 2}, "max_changes"),
        (
            {"calibration": "rigorous"},
            ("which requires a boost. Remove 'calibration' or set 'max_changes'"),
        ),
        ({"calibration": "assumed"}, "expected 'rigorous' or 'exact'"),
        (
            {"max_changes": 4, "boost": 0, "calibration": "rigorous"},
            ("which requires a boost. Remove 'calibration' or set 'max_changes'"),
        ),
        (
            {"max_changes": 4, "calibration": "exact"},
            ("calibration is 'exact', which requires that boost is 0. Set 'calibration: rigorous'"),
        ),
        ({"max_changes": 4, "dummies": "negative_binomial"}, "no proven calibration"),
        (
            {"max_changes": 2, "domain": ("a", "b")},
            "a cell for every item.* Set 'cells: count_min'",
        ),
        ({"max_changes": 0}, "max_changes is 0"),
        ({"max_changes": True}, "max_changes is True"),
        ({"calibration": "optimal"}, "calibration"),
        ({"delta": 1}, "delta"),
        ({"messages_per_user": True}, "messages_per_user"),
    ],
)
def test_contradictory_parameters_are_rejected(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShuffledCountsParameters(**{"epsilon": 1.0, "delta": DELTA, **parameters})


@pytest.mark.parametrize(
    ("parameters", "last_epoch", "boost", "mean", "basis"),
    [
        ({}, 170, 0, 3_046.6, "exact"),
        ({"max_changes": 4, "boost": 0}, 64, 0, 1_154.7, "exact"),
        ({"max_changes": 4}, 170, 3, 7_119, "bound"),
        ({"max_changes": 2, "dummies": "shuffle"}, 256, 6, 10_770, "bound"),
        ({"dummies": "negative_binomial"}, 64, 0, 183.8, "exact"),
    ],
)
def test_calibrated_noise_matches_the_reference(
    parameters: dict[str, Any], last_epoch: int, boost: int, mean: float, basis: str
) -> None:
    requested = ShuffledCountsParameters(1.0, DELTA, **parameters)
    law = calibrate(requested, last_epoch, minimum=30_000)
    assert law.boost == boost
    assert law.noise.mean == pytest.approx(mean, rel=0.01)
    guarantee = ShuffledCounts(law).guarantee
    assert (guarantee.epsilon, guarantee.delta) == (1.0, DELTA)
    assert (guarantee.unit, guarantee.basis) == ("stream", basis)
    assert "shuffle" in guarantee.trust
    if law.noise.dummies == "shuffle":
        assert law.noise.per_contributor(1) == 0
        assert "honest" not in guarantee.trust
    else:
        assert law.noise.per_contributor(1) * 30_000 >= law.noise.mean
        assert (
            "honest users in each window to send dummy messages; the messages alone do not protect"
        ) in guarantee.trust
    assert ShuffledCountsLaw.from_json(json.loads(json.dumps(law.to_json()))) == law


def test_epsilon_is_larger_with_half_the_minimum_number_of_contributors() -> None:
    requested = ShuffledCountsParameters(1.0, DELTA, max_changes=2, boost=1)
    law = calibrate(requested, 8, minimum=1_000)
    assert 0.99 < epsilon_with(law, 1_000) <= 1.0
    assert 1.3 < epsilon_with(law, 500) < 2.0


def test_job_that_needs_too_many_messages_is_rejected() -> None:
    """If the boost is not set, it is reduced instead."""

    def law(**more: Any) -> ShuffledCountsLaw:
        requested = ShuffledCountsParameters(1.0, DELTA, max_changes=4, **more)
        return calibrate(requested, 170, minimum=28_785)

    free = law()
    # 170 x (3 + 1) + 3 real messages and 170 x 7,119 / 28,785 dummies.
    assert free.messages == pytest.approx(683 + 42.0, abs=0.1)
    frugal = law(messages_per_user=600)
    assert frugal.boost == 2
    assert frugal.messages <= 600
    with pytest.raises(
        ValueError, match=r"725\.0 messages .* messages_per_user, 600\. .*`dummies: shuffle`"
    ):
        law(boost=3, messages_per_user=600)
    with pytest.raises(ValueError, match="exceed messages_per_user, 100"):
        law(messages_per_user=100)
    with pytest.raises(ValueError, match=r"683\.0 messages .* messages_per_user, 600\. Raise \w+$"):
        law(boost=3, messages_per_user=600, dummies="shuffle")
