"""Rows of the Hadamard matrix, which reduce a device's item to one tracked Boolean.

Row r of the Sylvester-Hadamard matrix of size B has the entry H[r, z] = (-1)^popcount(r & z) in
column z. Item z of a domain, numbered from 1, has column z; column 0 means "no item". A device
draws one public row, once and permanently. It tracks whether the row has +1 in the column of its
item: b = (1 + H[r, x]) / 2 for item x, 0 for no item.

Averaged over the rows, H[r, z] is 0 for every z >= 1, and H[r, x] H[r, z] is 1 if x = z and 0
otherwise. So 2 b H[r, z] averages 1 for devices that have item z and 0 for all others: each report
gives evidence about every item.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_ITEMS, MAX_ITEMS = 2, 4096

MAX_LABEL = 100


def check_labels(labels: tuple[str, ...]) -> None:
    if not MIN_ITEMS <= len(labels) <= MAX_ITEMS:
        raise ValueError(
            f"domain has {len(labels):,} labels; expected {MIN_ITEMS} to {MAX_ITEMS:,}"
        )
    seen = set[str]()
    for label in labels:
        if not 1 <= len(label) <= MAX_LABEL or label != label.strip() or not label.isprintable():
            raise ValueError(
                f"domain has the label {label[:MAX_LABEL]!a}; expected 1 to {MAX_LABEL} printable "
                "characters without leading or trailing spaces"
            )
        if label in seen:
            raise ValueError(f"domain has the label {label!r} twice. Remove one of them")
        seen.add(label)


def check_size(items: int) -> None:
    if not MIN_ITEMS <= items <= MAX_ITEMS:
        raise ValueError(f"got {items:,} items; expected {MIN_ITEMS} to {MAX_ITEMS:,}")


def rows_for(items: int) -> int:
    """Return the number of rows for `items` items: the least power of two above `items`.

    >>> rows_for(2), rows_for(3), rows_for(4)
    (4, 4, 8)
    """
    return 1 << items.bit_length()


def tracked(
    rows: NDArray[np.unsignedinteger], items: NDArray[np.integer] | NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return b, the tracked Boolean of devices with these rows and items, shape (devices,).

    >>> tracked(np.array([0, 1, 2], np.uint16), np.array([0, 1, 1])).tolist()
    [False, False, True]
    """
    held = items.astype(rows.dtype)
    has_plus = np.bitwise_count(rows & held) & 1 == 0
    return np.asarray(has_plus & (held != 0), np.bool_)
