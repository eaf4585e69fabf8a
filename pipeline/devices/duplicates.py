"""Select one of several rows of a user for the same epoch or time, by the rules of `Duplicates`.

The same rules apply to columns of a file, to single rows, and to items of a set.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray


def precedence(
    lines: NDArray[np.int64], values: NDArray[np.integer], rule: str
) -> NDArray[np.int64]:
    """Return int64 sort keys by the rule first, last, largest or smallest; others mean first."""
    match rule:
        case "last":
            return -lines.astype(np.int64)
        case "largest":
            return -values.astype(np.int64)
        case "smallest":
            return values.astype(np.int64)
    return lines.astype(np.int64)


def ranked(items: list[int], rule: str | None) -> list[int]:
    """Sort items by a rule's preference; None means first.

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
        NEWER: It counts.
        SAME: It repeats the known value.
        OLDER: A later one was read before.
        PREFERRED: Of several for the same time, the rule selects it.
        PASSED_OVER: Of several for the same time, the rule selects another.
        CONTRADICTS: It differs for the same time, and no rule selects one.
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
    """Return the effect of a row after others of its user.

    >>> row_action("largest", (3, 20), 3, 25), row_action(None, (3, 20), 3, 25)
    (<RowAction.PREFERRED: 4>, <RowAction.CONTRADICTS: 6>)
    >>> row_action(None, (3, 20), 2, 0)
    <RowAction.OLDER: 3>

    Positions are in time. `rule` None and reject allow no differing rows of the same time. `newest`
    is position and value of the row that counts so far, or None.
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
