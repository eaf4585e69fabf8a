"""Changes of answers and ranges of numbers in the events of all users, computed with numpy.

Users are int32 indices from 0, epochs int64; arrays of events have one element per event.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

COVERED_CHANGES: Final = 0.95
"""Share of the users for whom a number of changes suffices."""
COVERED_NUMBERS: Final = 0.99
"""Share of the numbers within a range."""


def activity_changes(
    users: NDArray[np.int32], epochs: NDArray[np.int64], within: int, count: int
) -> NDArray[np.float64]:
    """Return how often each user's answer to "active in the last `within` epochs" changes.

    `users` and `epochs` are those of events; epochs before 1 are history. Answers start with no.
    """
    size = int(users.max(initial=-1)) + 1
    users, epochs, _ = _by_user(users, epochs, np.ones(len(users)), count)
    if not len(users):
        return np.zeros(size)
    begins = np.ones(len(users), np.bool_)
    begins[1:] = (users[1:] != users[:-1]) | (np.diff(epochs) > within)
    first = np.flatnonzero(begins)
    ends = epochs[np.append(first[1:], len(users)) - 1] + within - 1
    seen = ends >= 1
    changes = seen.astype(np.float64) + (seen & (ends < count))
    return np.bincount(users[first], changes, minlength=size).astype(np.float64)


def epoch_totals(
    users: NDArray[np.int32],
    epochs: NDArray[np.int64],
    numbers: NDArray[np.float64],
    count: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
    """Return the sum of each user's numbers in each epoch from 1, by user and then by epoch."""
    within = epochs >= 1
    return _by_user(users[within], epochs[within], numbers[within], count)


def _by_user(
    users: NDArray[np.int32],
    epochs: NDArray[np.int64],
    numbers: NDArray[np.float64],
    count: int,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
    within = epochs <= count
    users, epochs, numbers = users[within], epochs[within], numbers[within]
    order = np.lexsort((epochs, users))
    users, epochs, numbers = users[order], epochs[order], numbers[order]
    if not len(users):
        return users, epochs, numbers
    starts = np.ones(len(users), np.bool_)
    starts[1:] = (users[1:] != users[:-1]) | (epochs[1:] != epochs[:-1])
    first = np.flatnonzero(starts)
    return users[first], epochs[first], np.add.reduceat(numbers, first)


def path_changes(
    users: NDArray[np.int32],
    epochs: NDArray[np.int64],
    values: NDArray[np.float64],
    empty: float,
    count: int,
) -> NDArray[np.float64]:
    """Return the length of the path of values of users 0, 1, ..., from 0 at epoch 0.

    `values` are those of the totals of `epoch_totals`; `empty` is the value of all other epochs.
    For shares of a range, this is the expected number of changes of a device's answer.
    """
    size = int(users.max(initial=-1)) + 1
    if not len(users):
        return np.zeros(size)
    first, last = np.ones(len(users), np.bool_), np.ones(len(users), np.bool_)
    first[1:] = last[:-1] = users[1:] != users[:-1]
    before = np.append(0.0, values[:-1])
    apart = np.append(0, np.diff(epochs)) > 1
    before[first] = np.where(epochs[first] > 1, empty, 0.0)
    lengths = np.where(epochs > 1, abs(empty), 0.0) * first
    broken = apart & ~first
    lengths[broken] += np.abs(before[broken] - empty)
    before[broken] = empty
    lengths += np.abs(values - before)
    lengths += (last & (epochs < count)) * np.abs(values - empty)
    return np.bincount(users, lengths, minlength=size).astype(np.float64)


def rounded_up(number: float) -> float:
    """Return the next larger number of few digits.

    >>> [rounded_up(number) for number in (0.07, 1.0, 37.2, 950.0)]
    [0.08, 1.0, 40.0, 1000.0]
    """
    if number <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(number))
    for digits in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8):
        if number <= digits * unit * (1 + 1e-12):
            return float(f"{digits * unit:.6g}")
    return float(f"{10 * unit:.6g}")


def usual_range(totals: NDArray[np.float64]) -> tuple[float, float]:
    if not len(totals):
        return 0.0, 1.0
    low, high = np.quantile(totals, [1 - COVERED_NUMBERS, COVERED_NUMBERS]).tolist()
    low = 0.0 if totals.min() >= 0 else -rounded_up(max(-low, 0.0))
    high = rounded_up(high)
    return low, high if high > low else low + 1.0


def usual_edges(totals: NDArray[np.float64], *, whole: bool) -> list[float]:
    quartiles = np.quantile(totals, [0.25, 0.5, 0.75, 0.95]).tolist() if len(totals) else [1.0]
    edges = {rounded_up(edge) for edge in quartiles}
    if whole:
        edges = {1.0, *map(math.ceil, edges)}
    return sorted({0.0, *(float(edge) for edge in edges if edge > 0)})


def fitting_changes(changes: NDArray[np.float64], least: int, most: int) -> int:
    """Return `least` times the smallest power of two that suffices for most users, up to `most`."""
    wanted = min(float(np.quantile(changes, COVERED_CHANGES, method="higher")), most)
    found = least
    while found < wanted:
        found *= 2
    return max(least, min(found, most))
