"""value_stream: one byte per epoch, one privacy loss for a whole stream.

At every epoch a device reports a symbol, which encodes a number z. With probability m the device is
*input-independent*: it draws all its symbols from a fixed distribution. Otherwise the distribution
is tilted in the direction of u = x - 1/2 + f, where x is its value and f tracks its changes. A
change adds a to f or subtracts a from it. One epoch later, a fraction b of f remains. The sum of
u^2 is at most the *squared-norm budget* r^2. The mean of z is g u / r.

For every stream x, P(symbols | x) is between m and m e^epsilon times the probability of the symbols
under the fixed distribution. In continuous time, the tilts are ratios of a martingale: the
probability that a Brownian motion ends above theta r. On multiples of 1/8 this holds up to a
relative error of 1e-13 per epoch. The bound holds for any number of changes, for streams that
depend on published estimates, and after the budget is used up, when u stays 0.

Only the first k changes of a device are boosted. Later changes are tracked more slowly; no device
ever stops tracking its value.

Reference: Asi, Feldman, Talwar, *Optimal Algorithms for Mean Estimation under Local Differential
Privacy*, ICML 2022. The symbols have the distribution of its PrivUnitG, drawn coordinate by
coordinate for a causal linear image of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import LawT
from dpstream.randomizers.following_devices import MAX_EPOCHS, TOGETHER, FollowingDevices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants, hexadecimal
from dpstream.randomizers.value_stream.lattice import STEP, ZERO
from dpstream.randomizers.value_stream.tilt import draw_symbols, draw_tilted_symbols, reach

MIN_EPSILON, MAX_EPSILON = 1e-3, 10.0
"""Range of epsilon, outside of which `tilt.FLOOR` would bias estimates."""
MAX_CHANGES = 1 << 15
LOSS_OF_AN_EPOCH = 3e-10
"""Maximum loss per epoch that rounding to 1/8 and to 64 bits adds to that of the martingale."""


@dataclass(frozen=True, slots=True)
class ValueStreamParameters:
    epsilon: float
    max_changes: int

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, int | float):
            raise ValueError(f"epsilon is {self.epsilon!r}; expected a number")
        if not MIN_EPSILON <= self.epsilon <= MAX_EPSILON:
            raise ValueError(
                f"epsilon is {self.epsilon}; expected {MIN_EPSILON:g} to {MAX_EPSILON:g}"
            )
        if type(self.max_changes) is not int or not 1 <= self.max_changes <= MAX_CHANGES:
            raise ValueError(
                f"max_changes is {self.max_changes!r}; expected an integer from 1 to "
                f"{MAX_CHANGES:,}"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


@dataclass(frozen=True, slots=True)
class ValueStreamLaw(Constants):
    """All constants of a job, whose loss is at most epsilon.

    Attributes:
        last_epoch: T, the number of epochs.
        max_changes: k, the number of boosted changes per device.
        noise: m, the probability that a device is input-independent, in units of 2^-64.
        boost: a, the amount that a change adds to u.
        decay: b, the fraction of the boost that remains one epoch later.
        squared_norm_budget: r^2, the maximum sum of u^2, including `reserve`.
        theta: `goal` divided by r.
        gain: g, where the mean of z is g u / r.
    """

    last_epoch: int
    epsilon: float
    max_changes: int
    noise: int
    boost: float = hexadecimal()
    decay: float = hexadecimal()
    squared_norm_budget: float = hexadecimal()
    theta: float = hexadecimal()
    gain: float = hexadecimal()

    def __post_init__(self) -> None:
        for name, value, most in (
            ("last_epoch", self.last_epoch, MAX_EPOCHS),
            ("max_changes", self.max_changes, MAX_CHANGES),
            ("noise", self.noise, (1 << 64) - 1),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}; expected an integer from 1 to {most:,}")
        numbers = (
            self.epsilon,
            self.boost,
            self.decay,
            self.squared_norm_budget,
            self.theta,
            self.gain,
        )
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"constants are {numbers}; expected finite numbers")
        if not (
            self.boost >= 0 and 0 <= self.decay < 1 and self.squared_norm_budget > self.reserve
        ):
            raise ValueError(
                f"boost is {self.boost}, decay is {self.decay} and squared_norm_budget is "
                f"{self.squared_norm_budget}; expected boost of at least 0, decay of at least 0 "
                f"and below 1, and squared_norm_budget above {self.reserve}"
            )
        if not (self.theta > 0 and self.gain > 0):
            raise ValueError(
                f"theta is {self.theta} and gain is {self.gain}; expected positive numbers"
            )
        if self.loss > self.epsilon:
            raise ValueError(f"loss is {self.loss}; expected at most epsilon, {self.epsilon}")

    @property
    def reserve(self) -> float:
        """Part of the budget that remains unused, because symbols are too coarse to use it."""
        return (self.boost + 0.5) * (self.boost + 0.5) / 40

    @property
    def goal(self) -> float:
        """Threshold theta r: input-dependent devices draw as if their sum ended above it."""
        return self.theta * math.sqrt(self.squared_norm_budget)

    @property
    def beginning(self) -> float:
        """Probability psi_0 of ending above the goal, before any draw."""
        return float(reach(np.zeros(1), np.array([self.squared_norm_budget]), self.goal)[0])

    @property
    def probability_of_noise(self) -> float:
        return self.noise / (1 << 64)

    @property
    def loss(self) -> float:
        """Privacy loss of a whole stream: ln(1 + (1 - m) / (m psi_0)) plus rounding errors."""
        noise = self.probability_of_noise
        lost = math.log1p((1 - noise) / (noise * self.beginning))
        return lost * (1 + 1e-12) + self.last_epoch * LOSS_OF_AN_EPOCH


class SymbolDevices(FollowingDevices[LawT]):
    def __init__(self, law: LawT, booleans: ValueStreamLaw) -> None:
        super().__init__(law, booleans)
        self._booleans = booleans
        self._goal, self._reserve = booleans.goal, booleans.reserve
        # 1 if the device is input-independent.
        self._noise = self._declare("noise", np.uint8, new=None, allowed=range(2))
        # Displacement of the device by its symbols: the sum of u z so far.
        self._sum = self._declare("sum", np.float64)
        # Remaining squared-norm budget.
        self._left = self._declare("left", np.float64, new=None)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee for a user's whole stream; see the module docstring for the proof."""
        return Guarantee(
            epsilon=self._booleans.epsilon,
            delta=0.0,
            unit="stream",
            neighbors="any two streams of a user's values, however often they change",
            trust=(
                "none; it holds against everyone who sees the reports; which devices exist and "
                "when they report is public"
            ),
            basis="bound",
        )

    @classmethod
    def restore(cls, law: LawT, arrays: Mapping[str, NDArray[np.generic]], epoch: int) -> Self:
        devices = super().restore(law, arrays, epoch)
        budgets = devices._left
        if not ((budgets >= 0) & (budgets <= devices._booleans.squared_norm_budget)).all():
            raise ValueError(
                "state array 'left' has a value out of range; expected 0 to "
                f"{devices._booleans.squared_norm_budget}. The state belongs to another job"
            )
        return devices

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        words = rng.integers(0, 1 << 64, count, dtype=np.uint64)
        return {
            "noise": words < np.uint64(self._booleans.noise),
            "left": np.full(count, self._booleans.squared_norm_budget),
        }

    def due(self, epoch: int) -> NDArray[np.intp]:
        return np.arange(self.population)

    def follow(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
        known: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.uint8]:
        """Report like `ValueStream.report`, for protocols whose devices add public draws.

        Random integers are drawn for 16,384 devices at a time: one for each input-independent
        device, then the integers of `tilt.draw_tilted_symbols`. `known`, bool, shape (population,),
        marks absent devices whose value is in `values` nevertheless; they track their changes
        without a report. Returns the symbols of present devices, in the order of enrollment.
        """
        observed = present
        if present is not None and known is not None:
            observed = present | known
        now = self._start_epoch(epoch, values, observed)
        words = []
        for start in range(0, self.population, TOGETHER):
            devices = slice(start, start + TOGETHER)
            self._take_in(devices, now[devices], None if observed is None else observed[devices])
            reporting = None if present is None else np.flatnonzero(present[devices])
            words.append(self._symbols(devices, now[devices], reporting, rng))
        return np.concatenate([np.zeros(0, np.uint8), *words])

    def _symbols(
        self,
        devices: slice,
        now: NDArray[np.int8],
        reporting: NDArray[np.intp] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        noise = self._noise[devices].view(np.bool_)
        if reporting is not None:
            noise = noise[reporting]
        tilted = np.flatnonzero(~noise)
        symbols = np.empty(len(noise), np.int16)
        symbols[noise] = draw_symbols(len(noise) - len(tilted), rng)
        places = tilted if reporting is None else reporting[tilted]
        sums, left = self._sum[devices], self._left[devices]
        begun, squared_norm_budget = sums[places], left[places]
        steps = now[places] - 0.5 + self._followed[devices][places]
        most = self._limits(squared_norm_budget)
        np.clip(steps, -most, most, out=steps)
        squared_norm_budget -= steps * steps
        drawn = self._tilted_symbols(devices.start + places, steps, begun, squared_norm_budget, rng)
        symbols[tilted] = drawn
        sums[places] = begun + steps * (drawn * STEP)
        left[places] = squared_norm_budget
        return (symbols + ZERO).astype(np.uint8)

    def _limits(self, squared_norm_budget: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the maximum |u| allowed by the remaining squared-norm budgets.

        In normal use devices almost never reach these limits, which guarantee the loss for any
        input, and for any effect of absence on the boosted changes.
        """
        lasting = np.sqrt(np.maximum(squared_norm_budget - self._reserve, 0))
        return np.minimum(lasting, self._booleans.boost + 0.5)

    def _tilted_symbols(
        self,
        devices: NDArray[np.intp],
        steps: NDArray[np.float64],
        sums: NDArray[np.float64],
        left: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> NDArray[np.int16]:
        return draw_tilted_symbols(steps, sums, left, self._goal, rng)


class ValueStream(SymbolDevices[ValueStreamLaw]):
    """Devices of one horizon.

    A device's absence must not depend on its value. Changes that a device makes while absent are
    tracked slowly, like changes after the first `max_changes`.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.value_stream.calibration import calibrate
    >>> rng = seeded_generator(1)
    >>> parameters = ValueStreamParameters(epsilon=4, max_changes=2)
    >>> devices = ValueStream(calibrate(parameters, last_epoch=16))
    >>> devices.enroll(1000, rng)
    >>> none = devices.report(1, np.zeros(1000, np.int8), None, rng)
    >>> all_ = devices.report(2, np.ones(1000, np.int8), None, rng)
    >>> bool(none.mean() < 80 < all_.mean())
    True
    """

    word_dtype = np.dtype(np.uint8)
    width = 1

    def __init__(self, law: ValueStreamLaw) -> None:
        super().__init__(law, law)

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        """Return one symbol from each present device: uint8, shape (devices, 1), from 8 to 152."""
        return self.follow(epoch, values, present, rng)[:, None]
