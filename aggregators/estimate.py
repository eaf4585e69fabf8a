"""What is published of an epoch: a number and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Self

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
