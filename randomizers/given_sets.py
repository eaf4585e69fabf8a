"""Validate the sets of items that devices receive at an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def checked_sets(
    epoch: int,
    values: NDArray[np.integer],
    present: NDArray[np.bool_] | None,
    population: int,
    most: int,
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return distinct pairs of user and item, as two arrays of shape (items,).

    Users are positions in enrollment order, ascending. `values` are items from 1, shape
    (population, slots), in any order and slot, 0 for none. `present` is True for present devices,
    shape (population,); None if all are. Raises `ValueError` if an array has the wrong shape or
    dtype, an item is negative, or a present device has more than `most` items.

    >>> users, items = checked_sets(1, np.array([[7, 7], [0, 5]]), None, 2, most=2)
    >>> users.tolist(), items.tolist()
    ([0, 1], [7, 5])
    """
    if values.ndim != 2 or len(values) != population or values.dtype.kind not in "iu":
        raise ValueError(
            f"'values' is {values.dtype} of shape {values.shape}; expected integers of shape "
            f"({population}, slots): the items of each device"
        )
    if present is not None:
        if present.shape != (population,) or present.dtype != np.bool_:
            raise ValueError(
                f"'present' is {present.dtype} of shape {present.shape}; expected bool of shape "
                f"({population},)"
            )
        values = np.where(present[:, None], values, 0)
    users, slots = np.nonzero(values)
    items = values[users, slots].astype(np.int64)
    if len(items) and items.min() < 1:
        raise ValueError(
            f"item {items.min()} at epoch {epoch} is out of range: items are numbered from 1"
        )
    if values.shape[1] > 1:
        order = np.lexsort((items, users))
        users, items = users[order], items[order]
        new = np.ones(len(users), np.bool_)
        new[1:] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
        users, items = users[new], items[new]
        held = np.bincount(users, minlength=1)
        if held.max() > most:
            raise ValueError(
                f"device {held.argmax()} has {held.max()} items at epoch {epoch}; expected at "
                f"most {most}"
            )
    return users, items


def set_rows(
    epoch: int,
    values: NDArray[np.integer],
    present: NDArray[np.bool_] | None,
    population: int,
    most: int,
    domain: int,
) -> NDArray[np.int64]:
    """Return the sets of present devices as `checked_sets` does, one per row.

    The result is int64, shape (devices present, most): each item once, then zeros. An item that
    exceeds `domain` raises `ValueError`.

    >>> set_rows(1, np.array([[0, 2, 2], [0, 0, 0], [3, 0, 1]]), None, 3, 2, 3).tolist()
    [[2, 0], [0, 0], [1, 3]]
    """
    users, items = checked_sets(epoch, values, present, population, most)
    if len(items) and int(items.max()) > domain:
        raise ValueError(
            f"item {items.max()} at epoch {epoch} is out of range: there are {domain:,} items"
        )
    rows = np.zeros((population, most), np.int64)
    held = np.bincount(users, minlength=population)
    rows[users, np.arange(len(users)) - (np.cumsum(held) - held)[users]] = items
    return rows if present is None else rows[present]
