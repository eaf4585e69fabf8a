"""Errors relative to the counts that they are errors of.

An error of 1 % of all users is half of a count that 2 % of them make up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SHARES: Final = (0.01, 0.05, 0.2)
"""Plausible sizes of a count, as shares of the users."""


def relative_errors(error: float, users: int) -> list[tuple[int, float]]:
    """Counts of plausible sizes, and the error relative to each.

    >>> relative_errors(290.0, 50_000)
    [(500, 0.58), (2500, 0.116), (10000, 0.029)]

    Args:
        error: root mean squared error, in users.
        users: number of users.
    """
    counts = sorted({max(1, round(share * users)) for share in SHARES})
    return [(count, error / count) for count in counts]


def relative_error_lines(
    error: float, users: int, people: str = "users"
) -> Iterator[tuple[str, str]]:
    """Labels and texts of the same.

    >>> next(relative_error_lines(290.0, 50_000))
    ('  a count of 500 (1% of all users)', 'off by 58%')

    Args:
        error: root mean squared error, in users.
        users: number of users.
        people: name of the users in the plural.
    """
    for count, relative in relative_errors(error, users):
        digits = 0 if relative >= 0.1 else 1 if relative >= 0.01 else 2
        off = f"off by {relative:,.{digits}%}"
        yield f"  a count of {count:,} ({count / users:.0%} of all {people})", off
