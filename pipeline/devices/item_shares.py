"""How often items are held, from a file: what errors that depend on it are predicted for."""

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
    """The counts of a CSV file ``item,count``, plain or gzip; None for a file of another kind.

    Items are not looked at: how unequal the counts are is all that matters.

    Returns:
        float64, shape (rows,), all of them above 0.

    Raises:
        InputError: the file cannot be read, or a row is no item and its count.
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
    """The share of the users that hold each item, on average over the epochs with any.

    Returns:
        float64, shape (items,), of those that anybody holds.

    Raises:
        InputError: nobody holds any.
    """
    items, rows = np.unique(log.values, return_counts=True)
    if not len(items):
        raise InputError("nobody holds an item in the input: there are no counts to go by")
    return np.asarray(rows / (len(log.users) * len(np.unique(log.epochs))), np.float64)


def _count(row: list[str], place: str) -> float:
    try:
        _, count = row
        number = float(count)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(f"{place}: {shown(','.join(row))} is not an item and its count")
    return number
