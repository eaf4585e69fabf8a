"""Scales that convert the signs reported on an interval to users.

Two groups of devices report with different probabilities, so each has its own scale:

* Devices enrolled when the interval began. They report if they are present at both of its ends.
  Their scale is the number of these devices divided by the number of their reports.
* Newcomers, enrolled within the interval. They report if they are present at its end. There can be
  few newcomers, so their scale is the inverse of the probability that a newcomer reports.

The first interval of an order has one group: all its devices are newcomers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation


@dataclass(frozen=True, slots=True, eq=False)
class IntervalScales:
    """Scales from signs to users for several intervals; each array has shape (intervals,).

    A sum of signs times `scale` or `newcomer_scale` estimates the sum of partial sums of a group.

    Attributes:
        group: Number of devices in the larger group.
        received: Number of reports of the larger group.
        scale: Scale of the larger group's signs, group / (c_gap * received); 0 without reports.
        newcomer_scale: Scale of the newcomers' signs.
        newcomer_variance: Variance of the newcomers' sum.
        all_newcomers: True if the interval is not the first, but began without enrolled devices.
            Newcomers are then the larger group.
        known: True if the interval has reports, or no devices.
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
        """Variance of the estimate, from the numbers of reports alone; infinite if unknown."""
        own = np.square(self.scale) * self.received + self.newcomer_variance
        variances: NDArray[np.float64] = np.where(self.known, own, np.inf)
        return variances


def interval_scales(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    c_gaps: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    participation: Participation,
    received: NDArray[np.int64],
) -> IntervalScales:
    """Compute the scales of several intervals.

    Args:
        begins: Last epoch before each interval, shape (intervals,).
        ends: Last epoch of each interval, shape (intervals,).
        c_gaps: c_gap of each interval, or one value for all.
        probabilities: Probability that a device draws an interval's order, or one value for all.
        participation: Head counts of all epochs.
        received: Number of reports by other devices and by newcomers, shape (intervals, 2).
    """
    population = participation.population[ends].astype(np.float64)
    enrolled = np.where(begins > 0, participation.population[np.maximum(begins, 0)], 0.0)
    newcomers = np.maximum(population - enrolled, 0.0)
    # If no device was enrolled at the start, all are newcomers, or this is the first interval.
    alone = enrolled == 0
    first = begins <= 0
    group = np.where(alone, population, enrolled)
    signs = np.where(alone & ~first, received[:, 1], received[:, 0])
    scale = np.divide(group, c_gaps * signs, out=np.zeros(len(ends)), where=signs > 0)
    present = participation.contributors[ends] / np.maximum(population, 1.0)
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
