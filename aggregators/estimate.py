"""What is published of an epoch: a number and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Half the width of a 95 % interval in standard deviations: 1.96."""

GAP = "gap"
"""Flag: something the estimate needs was never received, and no coverage is claimed."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its 95 % interval; None where nothing can be said.

    Attributes:
        value: the estimate, in users.
        standard_deviation: of its noise.
        low: lower end of the interval; it may be negative.
        high: upper end of the interval.
        reports: how many reports it rests on.
        population: how many users it is about.
        flags: what a reader has to know, such as `GAP`.
    """

    value: float | None
    standard_deviation: float | None
    low: float | None
    high: float | None
    reports: int
    population: int
    flags: tuple[str, ...] = ()

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Value, low and high, shape (3, 1); (3, 0) where nothing can be said."""
        if self.value is None:
            return np.zeros((3, 0))
        return np.array([[self.value], [self.low], [self.high]], np.float64)

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self) | {"flags": list(self.flags)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError: it is something else.
        """
        return cls(**{**body, "flags": tuple(body["flags"])})


@dataclass(frozen=True, slots=True, eq=False)
class ItemEstimates:
    """How many users hold each item of a domain, all with one and the same error bar.

    Attributes:
        values: float64, shape (items,), in users and in the order of the domain; some may be
            negative.
        standard_deviation: of the noise of each value.
        half_width: of the 95 % interval around each value.
        reports: how many reports the estimates rest on.
        population: how many users they are about.
        flags: what a reader has to know, such as `GAP`.
    """

    values: NDArray[np.float64]
    standard_deviation: float
    half_width: float
    reports: int
    population: int
    flags: tuple[str, ...] = ()

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Values, lows and highs, shape (3, items)."""
        width = np.array([[0.0], [-self.half_width], [self.half_width]])
        return np.asarray(self.values + width, np.float64)

    @property
    def largest(self) -> int:
        """Index of the item with the largest value."""
        return int(self.values.argmax())

    def item(self, index: int) -> Estimate:
        """The estimate of a single item."""
        value = float(self.values[index])
        return Estimate(
            value=value,
            standard_deviation=self.standard_deviation,
            low=value - self.half_width,
            high=value + self.half_width,
            reports=self.reports,
            population=self.population,
            flags=self.flags,
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; the values are rounded to a tenth of a user."""
        return {
            "items": np.round(self.values, 1).tolist(),
            "standard_deviation": self.standard_deviation,
            "half_width": self.half_width,
            "reports": self.reports,
            "population": self.population,
            "flags": list(self.flags),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(
            values=np.array(body["items"], np.float64),
            standard_deviation=float(body["standard_deviation"]),
            half_width=float(body["half_width"]),
            reports=int(body["reports"]),
            population=int(body["population"]),
            flags=tuple(body["flags"]),
        )
