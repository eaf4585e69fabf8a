"""Protocols that came before FutureRand: its devices, with another law of the signs.

What differs is in `dpstream.randomizers.comparisons.calibration`; a device draws from the law of
its job and does not know which of these protocols it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpstream.randomizers.future_rand import FutureRandParameters


@dataclass(frozen=True, slots=True)
class IndependentResponseParameters:
    """What a job says about independent randomized response of every change (Example 4.2).

    Attributes:
        epsilon: the privacy loss of a user's whole stream; each change takes an equal share.
        changes: how many changes of a user's value are followed.
        estimator: "prefix", as published, or "tree"; as for `FutureRandParameters`.

    Raises:
        ValueError: a value is not allowed; the message says what is.
    """

    epsilon: float
    changes: int
    estimator: Literal["tree", "prefix"] = "prefix"

    def __post_init__(self) -> None:
        FutureRandParameters(self.epsilon, self.changes, estimator=self.estimator)
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class BunParameters(IndependentResponseParameters):
    """What a job says about the composed randomizer of Bun et al.; fields as above."""


@dataclass(frozen=True, slots=True)
class ErlingssonParameters(IndependentResponseParameters):
    """What a job says about Erlingsson et al.: one change drawn in advance is randomized.

    Attributes:
        calibration: "published", which spends half of epsilon, or "full".
    """

    calibration: Literal["published", "full"] = "published"

    def __post_init__(self) -> None:
        IndependentResponseParameters.__post_init__(self)
        if self.calibration not in ("published", "full"):
            raise ValueError(f"calibration is {self.calibration!r}, must be 'published' or 'full'")
