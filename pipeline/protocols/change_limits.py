"""The assumption behind the intervals of protocols that follow a limited number of changes.

Such a protocol sizes its noise for people whose value changes at most k times in a horizon. Privacy
does not depend on that: a person with more changes is protected as well as all others. Accuracy
does: later changes are followed with a delay, or not at all, and intervals say nothing of the error
that this makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ChangeLimit:
    """How many changes of one person the intervals of a job assume at most.

    >>> print(ChangeLimit(4, "delayed"))
    assumes at most 4 changes per person; later changes appear with a delay
    >>> print(ChangeLimit(0, "lost", first_is_free=True))
    assumes at most 0 changes per person after the first value; later changes are not counted

    Attributes:
        changes: the most changes of one person in a horizon.
        later: what becomes of later ones in the estimates.
        first_is_free: True if the first item or number of a person is not one of them.
    """

    changes: int
    later: Literal["delayed", "lost"]
    first_is_free: bool = False

    def __str__(self) -> str:
        plural = "change" if self.changes == 1 else "changes"
        free = " after the first value" if self.first_is_free else ""
        later = "appear with a delay" if self.later == "delayed" else "are not counted"
        return f"assumes at most {self.changes:,} {plural} per person{free}; later changes {later}"

    @property
    def warning(self) -> str:
        """What flagged estimates mean: `dpstream.aggregators.estimate.CHANGES_USED`."""
        return (
            f"on average, people have made at least half of the {self.changes:,} changes that the "
            "intervals assume: those who change more often than others have made all of theirs, "
            "and intervals may miss the truth. Deploy the job with a larger parameters.changes, or "
            "with fewer epochs and renew: true"
        )


def change_limit(
    changes: int,
    epochs: int,
    later: Literal["delayed", "lost"],
    *,
    first_is_free: bool = False,
) -> ChangeLimit | None:
    """Return the limit, or None if so few epochs leave no room for more changes.

    Args:
        changes: k.
        epochs: of a horizon.
        later: as in `ChangeLimit`.
        first_is_free: as in `ChangeLimit`.
    """
    if epochs <= changes + first_is_free:
        return None
    return ChangeLimit(changes, later, first_is_free)
