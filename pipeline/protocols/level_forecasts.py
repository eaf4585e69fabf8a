"""What to expect of numbers over time: the errors of levels, and least squares over their tree."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.level_devices import LevelLaw
from dpstream.randomizers.value_tree import range_variances


class SmoothedForecast(typing.Protocol):
    """What is expected of one level, all devices on it."""

    @property
    def reports_per_user(self) -> NDArray[np.float64]:
        """Shape (epochs,)."""
        ...

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of each node, shape (epochs,)."""
        ...

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of each node's smoothed estimate, shape (epochs,)."""
        ...


class LevelForecast:
    """The levels' own errors, and what least squares over the value tree makes of them.

    Args:
        law: the constants of the job.
        forecasts: of each level, as if all devices were on it.
    """

    def __init__(self, law: LevelLaw, forecasts: Sequence[SmoothedForecast]) -> None:
        probabilities = np.array(law.level_probabilities)
        self.reports_per_user = probabilities @ [each.reports_per_user for each in forecasts]
        online = np.array([each.standard_deviations(1) for each in forecasts])
        smoothed = np.array([each.smoothed_standard_deviations(1) for each in forecasts])
        with np.errstate(divide="ignore"):
            self._level_variances = np.square(online) / probabilities[:, None]
            self._smoothed_level_variances = np.square(smoothed) / probabilities[:, None]

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each bucket, in users, shape (epochs,)."""
        return np.sqrt(users * range_variances(self._level_variances, 0, 1))

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimate of each bucket, in users, shape (epochs,)."""
        return np.sqrt(users * range_variances(self._smoothed_level_variances, 0, 1))

    def range_deviations(self, users: int, start: int, end: int) -> NDArray[np.float64]:
        """Of the number of values in the buckets from `start` to before `end`, counted from 0."""
        return np.sqrt(users * range_variances(self._level_variances, start, end))

    @property
    def widest(self) -> float:
        """No range has a larger deviation than this many times that of a bucket, at the last epoch.

        A range lies between two ends, and has at most the variances of the values below each of
        them: in the wavelets of a node both have the same sign.
        """
        last = self._level_variances[:, -1]
        ends = np.arange(2 ** len(last) + 1)
        cumulative = range_variances(last, 0, ends)
        worst = math.sqrt(2 * float(cumulative.max()))
        return worst / math.sqrt(float(range_variances(last, 0, 1)))

    def bucket_caveats(self, low: float, high: float, buckets: int) -> tuple[str, str]:
        """What the errors are about."""
        return (
            f"values lie in {buckets:,} buckets, each {(high - low) / buckets:.6g} wide",
            f"the errors are those of a single bucket; a wide range has at most "
            f"{self.widest:.1f} times as large ones",
        )
