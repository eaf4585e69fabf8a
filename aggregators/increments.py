"""Increments: estimated changes of counts over one dyadic interval.

The reports of an interval give one estimate, and those of its two halves give another. The two are
independent, so their best combination is the mean weighted by inverse variance. Weights are
computed from the numbers of reports, never from their contents: weights that depend on the noise
would bias the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Increment:
    """An estimate of the change over an interval, of one or several counts at once.

    Attributes:
        value: float64, shape (counts,), in users.
        prior_variance: Variance of each value, from the number of reports only; determines weights.
        variance: Variance of each value, estimated from the reports.
        reports: Number of reports.
        gaps: Orders of contained intervals without reports, which count as 0.
    """

    value: NDArray[np.float64]
    prior_variance: float
    variance: float
    reports: int
    gaps: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value.tolist(),
            "prior_variance": self.prior_variance,
            "variance": self.variance,
            "reports": self.reports,
            "gaps": list(self.gaps),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], counts: int) -> Self:
        value = np.array(body["value"], np.float64)
        variances = float(body["prior_variance"]), float(body["variance"])
        reports, gaps = body["reports"], tuple(body["gaps"])
        numbers = all(type(number) is int and number >= 0 for number in (reports, *gaps))
        finite = np.isfinite(value).all() and all(0 <= each < math.inf for each in variances)
        if value.shape != (counts,) or not (numbers and finite):
            raise ValueError(
                f"increment is invalid; expected {counts} finite values with finite variances"
            )
        return cls(value, *variances, reports, gaps)


def joined(parts: Sequence[Increment], counts: int) -> Increment:
    """Add increments of neighboring intervals, each with `counts` values; the sum of none is 0."""
    return Increment(
        value=sum((part.value for part in parts), np.zeros(counts)),
        prior_variance=math.fsum(part.prior_variance for part in parts),
        variance=math.fsum(part.variance for part in parts),
        reports=sum(part.reports for part in parts),
        gaps=tuple(gap for part in parts for gap in part.gaps),
    )


def own_share(own_variance: float, halves_variance: float) -> float:
    """Return the inverse-variance weight of an interval's own estimate relative to its halves.

    >>> own_share(1.0, 3.0), own_share(1.0, 0.0), own_share(0.0, 0.0), own_share(math.inf, 1.0)
    (0.75, 0.0, 0.5, 0.0)
    """
    if math.isinf(own_variance):
        return 0.0
    if math.isinf(halves_variance):
        return 1.0
    total = own_variance + halves_variance
    return halves_variance / total if total else 0.5


def combined(own: Increment | None, halves: Increment) -> Increment:
    """Combine an interval's own reports with those of its two halves.

    An interval without reports gets the estimate of its halves, gaps included. If it has reports,
    halves with gaps are ignored.
    """
    if own is None:
        return halves
    if halves.gaps:
        return own
    share = own_share(own.prior_variance, halves.prior_variance)
    rest = 1.0 - share
    return Increment(
        value=share * own.value + rest * halves.value,
        prior_variance=share**2 * own.prior_variance + rest**2 * halves.prior_variance,
        variance=share**2 * own.variance + rest**2 * halves.variance,
        reports=own.reports + halves.reports,
    )
