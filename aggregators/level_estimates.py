"""Estimate how many users have values in any range, from noisy node counts of a value tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.range_estimates import OrderedEstimates
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.code_variances import Ends, equal_variances, level_range_variances


@dataclass(frozen=True, slots=True, eq=False)
class LevelEstimates(OrderedEstimates):
    """Number of users with each value; the total number of values is estimated, too.

    >>> levels = Levels(4, (2, 2))
    >>> found = LevelEstimates.of_levels(levels, np.array([10.0, 30.0, 60.0, 0.0]), 50.0)
    >>> middle = found.range(1, 3)
    >>> middle.value, round(middle.standard_error, 1), found.quantile(0.4).value
    (90.0, 7.6, 2.0)

    Attributes:
        noise_variance: Variance of a node's own estimate.
        rooted: True if the root is counted.
        absence_error: Standard deviation, in users, that absent devices add to a range with a
            fraction p of the users, divided by sqrt(p (1 - p)).
    """

    levels: Levels = field(kw_only=True)
    noise_variance: float = field(kw_only=True)
    rooted: bool = field(kw_only=True)
    absence_error: float = field(kw_only=True)

    @classmethod
    def of_levels(
        cls,
        levels: Levels,
        values: NDArray[np.float64],
        noise_variance: float,
        *,
        absence_error: float = 0.0,
        rooted: bool = True,
        reports: int = 0,
        population: int = 0,
        flags: tuple[str, ...] = (),
    ) -> Self:
        own = level_range_variances(levels, equal_variances(levels, rooted=rooted), 0, 1)
        shares = np.clip(values / max(1, population), 0.0, 1.0)
        sampled = absence_error**2 * float((shares * (1 - shares)).mean())
        deviation = math.sqrt(noise_variance * float(own) + sampled)
        return cls(
            values,
            deviation,
            NORMAL_95 * deviation,
            reports,
            population,
            flags,
            levels=levels,
            noise_variance=noise_variance,
            rooted=rooted,
            absence_error=absence_error,
        )

    @classmethod
    def of_values(cls, found: ItemEstimates) -> Self:
        """Create estimates of ranges from single values with independent noise."""
        return cls(
            found.values,
            found.standard_error,
            found.half_width,
            *found.about,
            levels=Levels(len(found.values), (max(2, len(found.values)),)),
            noise_variance=(found.half_width / NORMAL_95) ** 2,
            rooted=False,
            absence_error=0.0,
        )

    @property
    def total(self) -> float:
        return float(self.values.sum())

    def variances(self, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        own = equal_variances(self.levels, self.noise_variance, rooted=self.rooted)
        noise = level_range_variances(self.levels, own, starts, ends)
        if not self.absence_error:
            return noise
        below = np.insert(np.cumsum(self.values), 0, 0.0)
        shares = np.clip((below[ends] - below[starts]) / self.population, 0.0, 1.0)
        return np.asarray(noise + self.absence_error**2 * shares * (1 - shares), np.float64)

    def to_json(self) -> dict[str, Any]:
        return {
            **ItemEstimates.to_json(self),
            "branching": list(self.levels.branching),
            "noise_variance": self.noise_variance,
            "rooted": self.rooted,
            "absence_error": self.absence_error,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        found = cls._shared(body)
        return cls(
            **found,
            levels=Levels(len(found["values"]), tuple(body["branching"])),
            noise_variance=float(body["noise_variance"]),
            rooted=bool(body["rooted"]),
            absence_error=float(body["absence_error"]),
        )
