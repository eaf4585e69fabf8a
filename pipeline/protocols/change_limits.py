"""Assumption behind intervals when a protocol tracks a limited number of changes.

Such a protocol sizes its noise for users whose value changes at most k times in a horizon. Privacy
does not depend on this limit: a user with more changes is protected as well as all other users.
Accuracy depends on it: changes beyond the limit appear late or not at all, and intervals do not
cover the errors that result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ChangeLimit:
    """Maximum number of changes per user that a job's intervals assume.

    >>> print(ChangeLimit(4, "delayed"))
    assumes at most 4 changes per user; later changes appear with a delay
    >>> print(ChangeLimit(0, "lost", first_is_free=True))
    assumes at most 0 changes per user after the first value; later changes are not counted

    Attributes:
        later: Effect of later changes on the estimates.
        first_is_free: True if a user's first item or number does not count as a change.
    """

    max_changes: int
    later: Literal["delayed", "lost"]
    first_is_free: bool = False

    def __str__(self) -> str:
        plural = "change" if self.max_changes == 1 else "changes"
        free = " after the first value" if self.first_is_free else ""
        later = "appear with a delay" if self.later == "delayed" else "are not counted"
        return (
            f"assumes at most {self.max_changes:,} {plural} per user{free}; later changes {later}"
        )

    @property
    def warning(self) -> str:
        """Meaning of the flag `dpstream.aggregators.estimate.CHANGES_USED`.

        >>> print(ChangeLimit(4, "delayed").warning)
        the true number may be outside its 95 % interval: users' values have changed at least 2 \
times on average, so those who change most have probably exhausted the allowed 4 changes, and \
their later changes appear late. Privacy is not affected
        """
        since = "appear late" if self.later == "delayed" else "are missing"
        half = "once" if self.max_changes == 2 else f"{self.max_changes / 2:g} times"
        return (
            "the true number may be outside its 95 % interval: users' values have changed at least "
            f"{half} on average, so those who change most have probably exhausted the allowed "
            f"{self.max_changes:,} changes, and their later changes {since}. Privacy is not "
            "affected"
        )

    @property
    def remedy(self) -> str:
        return (
            "deploy the job again, with a larger parameters.max_changes (intervals get wider) or "
            "with fewer epochs and 'renew: true' (each horizon costs epsilon again)"
        )


def change_limit(
    max_changes: int,
    epochs: int,
    later: Literal["delayed", "lost"],
    *,
    first_is_free: bool = False,
    boost: float = 1.0,
) -> ChangeLimit | None:
    """Return the limit; None if users cannot exceed the limit, or if no change is boosted."""
    if not boost or epochs <= max_changes + first_is_free:
        return None
    return ChangeLimit(max_changes, later, first_is_free)
