"""Select one of a user's rows for the same epoch or time, by the rules of `Duplicates`.

The same rules apply to columns of a file, to single rows, and to items of a set.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray


def precedence(
    lines: NDArray[np.int64], values: NDArray[np.integer], rule: str
) -> NDArray[np.int64]:
    """Return int64 sort keys that order rows by `rule`'s preference."""
    match rule:
        case "last":
            return -lines.astype(np.int64)
        case "largest":
            return -values.astype(np.int64)
        case "smallest":
            return values.astype(np.int64)
    return lines.astype(np.int64)


def ranked(items: list[int], rule: str | None) -> list[int]:
    """Sort items by `rule`'s preference; without a rule, the order stays.

    >>> ranked([5, 9, 2], "largest"), ranked([5, 9, 2], "last"), ranked([5, 9, 2], None)
    ([9, 5, 2], [2, 9, 5], [5, 9, 2])
    """
    match rule:
        case "last":
            return items[::-1]
        case "largest":
            return sorted(items, reverse=True)
        case "smallest":
            return sorted(items)
    return items


class RowAction(Enum):
    """Effect of a row on its user's value.

    Attributes:
        NEWER: The row is newer than all known rows, so its value counts.
        SAME: The row repeats the known value.
        OLDER: A row for a later time was read before, so this row has no effect.
        PREFERRED, PASSED_OVER: Of several rows for the same time, the rule selects this row, or
            another one.
        CONTRADICTS: A row for the same time has another value, and no rule selects either row.
    """

    NEWER = auto()
    SAME = auto()
    OLDER = auto()
    PREFERRED = auto()
    PASSED_OVER = auto()
    CONTRADICTS = auto()

    @property
    def counts(self) -> bool:
        return self in (RowAction.NEWER, RowAction.PREFERRED)

    @property
    def by_rule(self) -> bool:
        return self in (RowAction.PREFERRED, RowAction.PASSED_OVER)


def row_action(
    rule: str | None, newest: tuple[int, int] | None, position: int, value: int
) -> RowAction:
    """Return the effect of a row, given the user's earlier rows.

    >>> row_action("largest", (3, 20), 3, 25), row_action(None, (3, 20), 3, 25)
    (<RowAction.PREFERRED: 4>, <RowAction.CONTRADICTS: 6>)
    >>> row_action(None, (3, 20), 2, 0)
    <RowAction.OLDER: 3>

    `position` is a time or epoch. If `rule` is None or "reject", rows for the same time must not
    differ. `newest` is the position and value of the user's row that counts so far, or None.
    """
    if newest is None or position > newest[0]:
        return RowAction.NEWER
    if position < newest[0]:
        return RowAction.OLDER
    if value == newest[1]:
        return RowAction.SAME
    if rule in (None, "reject"):
        return RowAction.CONTRADICTS
    preferred = (
        rule == "last"
        or (rule == "largest" and value > newest[1])
        or (rule == "smallest" and value < newest[1])
    )
    return RowAction.PREFERRED if preferred else RowAction.PASSED_OVER
