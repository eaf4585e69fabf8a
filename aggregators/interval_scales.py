"""The scales that turn the signs reported on an interval into users.

Devices that were enrolled when an interval began report on it if they were there at both of its
ends, those enrolled within it if they are there at its end. So the two groups are represented to a
different extent, and each is scaled by itself: the former by how many of them were enrolled over
how many reports they made; the newcomers, who may be very few, by the probability that one reports.
The first interval of an order has one group: all its devices are newcomers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Attendance


@dataclass(frozen=True, slots=True, eq=False)
class IntervalScales:
    """Scales from signs to users, for several intervals; each array of shape (intervals,).

    A sum of signs times `scale` or `newcomer_scale` estimates the sum of the partial sums of a
    group.

    Attributes:
        group: devices of the larger group.
        received: reports of that group.
        scale: group / (c_gap * received); 0 without reports.
        newcomer_scale: of the newcomers' signs.
        all_newcomers: whether an interval after the first began with an empty population: the
            newcomers are then the larger group.
        newcomer_variance: of their part.
        known: whether anything can be said of the interval: there are reports, or nobody to report.
    """

    group: NDArray[np.float64]
    received: NDArray[np.int64]
    scale: NDArray[np.float64]
    newcomer_scale: NDArray[np.float64]
    newcomer_variance: NDArray[np.float64]
    all_newcomers: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @property
    def variances(self) -> NDArray[np.float64]:
        """Of the estimate, known from the numbers of reports alone; infinite where not known."""
        own = np.square(self.scale) * self.received + self.newcomer_variance
        variances: NDArray[np.float64] = np.where(self.known, own, np.inf)
        return variances


def interval_scales(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    c_gaps: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    attendance: Attendance,
    received: NDArray[np.int64],
) -> IntervalScales:
    """The scales of some intervals.

    Args:
        begins: the epochs before their first ones, shape (intervals,).
        ends: their last epochs, the same shape.
        c_gaps: of their orders; the same shape, or one for all.
        probabilities: that a device draws their orders; the same.
        attendance: head counts.
        received: reports of others and of newcomers, shape (intervals, 2).
    """
    population = attendance.population[ends].astype(np.float64)
    enrolled = np.where(begins > 0, attendance.population[np.maximum(begins, 0)], 0.0)
    newcomers = np.maximum(population - enrolled, 0.0)
    # Nobody was enrolled when it began: all are newcomers, or it is the first interval.
    alone = enrolled == 0
    first = begins <= 0
    group = np.where(alone, population, enrolled)
    signs = np.where(alone & ~first, received[:, 1], received[:, 0])
    scale = np.divide(group, c_gaps * signs, out=np.zeros(len(ends)), where=signs > 0)
    present = attendance.contributors[ends] / np.maximum(population, 1.0)
    reporting = c_gaps * probabilities * np.where(alone, 0.0, present)
    newcomer_scale = np.divide(1.0, reporting, out=np.zeros(len(ends)), where=reporting > 0)
    return IntervalScales(
        group=group,
        received=signs,
        scale=scale,
        newcomer_scale=np.where(alone & ~first, scale, newcomer_scale),
        newcomer_variance=np.where(alone, 0.0, newcomers * newcomer_scale / c_gaps),
        all_newcomers=alone & ~first,
        known=(signs > 0) | (population == 0),
    )
