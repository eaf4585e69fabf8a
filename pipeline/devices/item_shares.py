"""Read item frequencies from a file, for error predictions that depend on them."""

from __future__ import annotations

import csv
import math
from os import PathLike, fspath

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.bounded_lines import BoundedLines
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.record_files import open_text
from dpstream.pipeline.values.times import shown

_HEADER = ["item", "count"]


def counts_in(path: str | PathLike[str]) -> NDArray[np.float64] | None:
    """Read the counts from a CSV file with columns ``item,count``; None for other files.

    The file is plain or gzip. Item names are ignored: only the distribution of counts matters.
    Returns the positive counts, float64. Raises `InputError` if the file or a row is malformed.
    """
    name = fspath(path)
    counts = []
    with open_text(name) as text:
        lines = BoundedLines(text)
        rows = csv.reader(lines)
        try:
            if [field.strip().casefold() for field in next(rows, [])] != _HEADER:
                return None
            for row in rows:
                lines.record = 0
                counts += [_count(row, f"{name}:{lines.taken}")] if row else []
        except csv.Error as error:
            raise InputError(f"{name}:{lines.taken}: {error}") from None
    found = np.array(counts, np.float64)
    found = found[found > 0]
    if not len(found):
        raise InputError(f"{name}: no item has a count above 0")
    return found


def usual_shares(log: ItemLog) -> NDArray[np.float64]:
    """Return the fraction of users with each item, averaged over the epochs that have items.

    Returns float64, shape (items,), for the items that occur. Raises `InputError` without items.
    """
    items, rows = np.unique(log.values, return_counts=True)
    if not len(items):
        raise InputError("the input contains no items, so there are no counts to predict from")
    return np.asarray(rows / (len(log.users) * len(np.unique(log.epochs))), np.float64)


def _count(row: list[str], place: str) -> float:
    try:
        _, count = row
        number = float(count)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"{place}: got {shown(','.join(row))}; expected an item and its count")
    return number
