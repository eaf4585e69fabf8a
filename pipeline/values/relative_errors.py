"""Errors relative to the counts that they are errors of.

An error of 1 % of all users is half of a count that 2 % of them make up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

SHARES: Final = (0.01, 0.05, 0.2)
"""Plausible sizes of a count, as shares of the users."""


def relative_error_lines(
    error: float, users: int, people: str = "users"
) -> Iterator[tuple[str, str]]:
    """Yield counts of plausible sizes and the error relative to each, as labels and texts.

    >>> for label, text in relative_error_lines(290.0, 50_000):
    ...     print(label, text)
      a count of 500 (1% of all users) off by 58%
      a count of 2,500 (5% of all users) off by 12%
      a count of 10,000 (20% of all users) off by 2.9%

    Args:
        error: root mean squared error, in users.
        users: number of users.
        people: name of the users in the plural.
    """
    for count in sorted({max(1, round(share * users)) for share in SHARES}):
        relative = error / count
        digits = 0 if relative >= 0.1 else 1 if relative >= 0.01 else 2
        off = f"off by {relative:,.{digits}%}"
        yield f"  a count of {count:,} ({count / users:.0%} of all {people})", off
