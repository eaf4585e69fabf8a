"""Sets of items as rows of equal length, for devices that always send equally much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.given_sets import checked_sets


def set_rows(
    epoch: int,
    values: NDArray[np.integer],
    present: NDArray[np.bool_] | None,
    population: int,
    most: int,
    domain: int,
) -> NDArray[np.int64]:
    """The sets of those present, one a row.

    Args:
        epoch: named in errors.
        values: items from 1 on, shape (population, slots) in any order and place, 0 for none.
        present: shape (population,), which devices are not silent; None for all of them.
        population: how many devices there are.
        most: how many items a user may hold.
        domain: how many items there are.

    Returns:
        int64, shape (devices present, most): each item once, then zeros.

    Raises:
        ValueError: from `checked_sets`, or an item is not of the domain.

    >>> set_rows(1, np.array([[0, 2, 2], [0, 0, 0], [3, 0, 1]]), None, 3, 2, 3).tolist()
    [[2, 0], [0, 0], [1, 3]]
    """
    users, items = checked_sets(epoch, values, present, population, most)
    if len(items) and int(items.max()) > domain:
        raise ValueError(f"item {items.max()} at epoch {epoch}, there are {domain:,}")
    rows = np.zeros((population, most), np.int64)
    held = np.bincount(users, minlength=population)
    rows[users, np.arange(len(users)) - (np.cumsum(held) - held)[users]] = items
    return rows if present is None else rows[present]
