"""Changes of answers, held to histories of single users."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.planning.event_statistics import (
    activity_changes,
    epoch_totals,
    fitting_changes,
    path_changes,
    rounded_up,
    usual_edges,
    usual_range,
)
from dpstream.randomizers.event_histories import EventHistory
from dpstream.randomizers.measures import MEAN_UNIT, MeanRange, Measure

COUNT = 9


def logs(seed: int, users: int = 40) -> list[list[tuple[int, float]]]:
    random = Random(seed)
    return [
        [
            (random.randrange(-3, COUNT + 3), random.choice((1.5, 4.0, 9.0)))
            for _ in range(random.randrange(6))
        ]
        for _ in range(users)
    ]


def answers(log: list[tuple[int, float]], measure: Measure) -> list[int]:
    history = EventHistory([measure])
    for epoch, number in log:
        history.record(epoch, epoch, numbers={"n": number})
    found = []
    for epoch in range(-4, COUNT + 1):
        history.close(epoch)
        if epoch >= 1:
            found.append(history.answer(measure, epoch))
    return found


def columns(
    found: list[list[tuple[int, float]]],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
    rows = [(user, *row) for user, log in enumerate(found) for row in log]
    Random(1).shuffle(rows)
    users, epochs, numbers = zip(*rows, strict=True)
    return np.array(users, np.int32), np.array(epochs, np.int64), np.array(numbers)


@pytest.mark.parametrize("within", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_changes_of_activity_are_those_of_each_history(seed: int, within: int) -> None:
    found = logs(seed)
    users, epochs, _ = columns(found)
    changes = activity_changes(users, epochs, within, COUNT)
    for user, changed in enumerate(changes.tolist()):
        path = [0, *answers(found[user], Measure("active", within))]
        assert changed == sum(one != other for one, other in pairwise(path))


@pytest.mark.parametrize(("low", "high"), [(0, 12), (-4, 6)])
@pytest.mark.parametrize("seed", range(5))
def test_path_of_a_sum_is_that_of_each_history(seed: int, low: float, high: float) -> None:
    found = logs(seed)
    users, epochs, sums = epoch_totals(*columns(found), COUNT)
    shares = np.clip((sums - low) / (high - low), 0, 1)
    lengths = path_changes(users, epochs, shares, -low / (high - low), COUNT)
    measure = Measure("sum", number="n", mean=MeanRange(low, high))
    for user, length in enumerate(lengths.tolist()):
        if not any(1 <= epoch <= COUNT for epoch, _ in found[user]):
            continue  # users without a total are not in the result
        path = [0, *answers(found[user], measure)]
        expected = sum(abs(one - other) for one, other in pairwise(path)) / MEAN_UNIT
        assert math.isclose(length, expected, abs_tol=1e-6)


def test_the_smallest_power_that_suffices_for_most_users_fits() -> None:
    changes = np.array([0] * 94 + [7] * 3 + [50] * 3)
    assert fitting_changes(changes, 2, 100) == 8
    assert fitting_changes(changes, 2, 6) == 6
    assert fitting_changes(np.zeros(10), 2, 100) == 2


def test_ranges_and_edges_have_few_digits() -> None:
    numbers = np.array([*range(1, 98), 5_000.0, 5_000.0, 5_000.0])
    assert usual_range(numbers[:97]) == (0.0, 100.0)
    assert usual_range(-numbers[:97]) == (-100.0, 0.0)
    assert usual_range(np.zeros(0)) == (0.0, 1.0)
    assert usual_edges(numbers, whole=True) == [0.0, 1.0, 30.0, 60.0, 80.0, 100.0]
    assert rounded_up(0.0) == 0.0
