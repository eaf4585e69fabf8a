"""Which of several rows of a user for the same epoch or time counts: the rules of `Duplicates`.

The same rules for columns of a file, for rows that come one by one, and for items of a set.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray


def precedence(
    lines: NDArray[np.int64], values: NDArray[np.integer], rule: str
) -> NDArray[np.int64]:
    """What comes first by a rule has the smallest number; int64, as many as there are rows.

    Args:
        lines: where each row stands.
        values: of each row.
        rule: first, last, largest or smallest; any other is as first.
    """
    match rule:
        case "last":
            return -lines.astype(np.int64)
        case "largest":
            return -values.astype(np.int64)
        case "smallest":
            return values.astype(np.int64)
    return lines.astype(np.int64)


def ranked(items: list[int], rule: str | None) -> list[int]:
    """Items in the order in which a rule prefers them; None is as first.

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
    """What a row comes to that says what a user holds.

    Attributes:
        NEWER: it counts.
        SAME: it says again what is known.
        OLDER: a later one was read before.
        PREFERRED: of several for the same moment it counts by the rule.
        PASSED_OVER: of several for the same moment another one does.
        CONTRADICTS: it says something else for the same moment, and no rule says which counts.
    """

    NEWER = auto()
    SAME = auto()
    OLDER = auto()
    PREFERRED = auto()
    PASSED_OVER = auto()
    CONTRADICTS = auto()

    @property
    def counts(self) -> bool:
        """Whether the user holds what the row says."""
        return self in (RowAction.NEWER, RowAction.PREFERRED)

    @property
    def by_rule(self) -> bool:
        """Whether a rule has decided between several."""
        return self in (RowAction.PREFERRED, RowAction.PASSED_OVER)


def judged(
    rule: str | None, newest: tuple[int, int] | None, position: int, value: int
) -> RowAction:
    """What a row comes to after others of its user.

    >>> judged("largest", (3, 20), 3, 25), judged(None, (3, 20), 3, 25), judged(None, (3, 20), 2, 0)
    (<RowAction.PREFERRED: 4>, <RowAction.CONTRADICTS: 6>, <RowAction.OLDER: 3>)

    Args:
        rule: for rows of the same moment; None and refuse allow none that differ.
        newest: position and value of the row that counts so far; None before the first one.
        position: of the row in time.
        value: of the row.
    """
    if newest is None or position > newest[0]:
        return RowAction.NEWER
    if position < newest[0]:
        return RowAction.OLDER
    if value == newest[1]:
        return RowAction.SAME
    if rule in (None, "refuse"):
        return RowAction.CONTRADICTS
    preferred = (
        rule == "last"
        or (rule == "largest" and value > newest[1])
        or (rule == "smallest" and value < newest[1])
    )
    return RowAction.PREFERRED if preferred else RowAction.PASSED_OVER
