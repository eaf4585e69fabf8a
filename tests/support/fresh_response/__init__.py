"""Protocol of a third-party package: randomized response with fresh noise at every epoch.

Epsilon is split evenly between epochs. A device sends its value with a probability that is a
multiple of 1 / 2^32, so that the loss of the whole stream is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices
from dpstream.randomizers.given_values import check_epoch, checked_booleans
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants

WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class FreshResponseParameters:
    """Job parameters; `epsilon` is for a user's whole stream."""

    epsilon: float

    def __post_init__(self) -> None:
        if not 1e-3 <= self.epsilon <= 64:
            raise ValueError(f"epsilon is {self.epsilon}; expected a number from 0.001 to 64")


@dataclass(frozen=True, slots=True)
class FreshResponseLaw(Constants):
    """Number of epochs, and number of draws of 2^32 that send the true value."""

    last_epoch: int
    kept: int

    def __post_init__(self) -> None:
        if not WHOLE // 2 < self.kept < WHOLE:
            raise ValueError(f"kept is {self.kept}; expected more than half of {WHOLE}")

    @property
    def c_gap(self) -> float:
        """P(report equals the value) - P(report differs from the value)."""
        return 2 * self.kept / WHOLE - 1

    @property
    def loss(self) -> float:
        """Loss of the whole stream, rounded up."""
        ratio = Fraction(self.kept, WHOLE - self.kept)
        return math.nextafter(self.last_epoch * math.log(ratio), math.inf) * (1 + 1e-15)


class FreshResponse(Devices[FreshResponseLaw]):
    """Devices of one horizon, without draws at enrollment."""

    word_dtype: ClassVar[np.dtype[np.uint8]] = np.dtype(np.uint8)
    width: ClassVar[int] = 1

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=self.law.loss,
            delta=0.0,
            unit="stream",
            neighbors="any two streams of a user's values",
            trust="none; which devices exist and when they report is public",
            basis="exact",
        )

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
        values = checked_booleans(epoch, values, present, self.population)
        here = np.arange(self.population) if present is None else np.flatnonzero(present)
        reversed_ = rng.integers(0, WHOLE, len(here), np.uint32) >= self.law.kept
        self.epoch = epoch
        return (values[here].astype(np.uint8) ^ reversed_)[:, None]
