"""Shuffled variant of value_stream: one message per epoch, of which only a noisy sum is released.

At every epoch a device sends u = x - 1/2 + f, where x is its value and f tracks its changes
(`dpstream.randomizers.following_devices`), randomly rounded to one of the two neighboring multiples
of 1/256. The shuffler adds Gaussian noise to the sum of a window's messages and releases only the
result. The sum of a device's squared messages u^2, as rounded, never exceeds its *squared-norm
budget* R. So the contributions of two streams to all sums differ by a Euclidean distance of at most
2 sqrt(R). This holds for any streams, however often they change, even if they depend on what was
published. The noise is calibrated for that distance.

Noise is N(0, sigma^2) rounded to a multiple of 1/256. Since sums are such multiples, this is the
same as rounding a noisy sum, and reveals no more than the unrounded noisy sum.

Devices that were absent in the previous epoch do not boost a change, as in `shuffled_counts`.

A value can also be a number x from 0 to 1 (`ShuffledNumberStream`). A change by d adds a d to f, as
long as the sum of |d| is at most k; of the change that exceeds k, only the part within k counts.
Numbers then stay within R too. For a threshold U drawn uniformly, the Boolean x > U has the mean x,
and its mean number of changes is the sum of |d|. So u is a mean of messages that Booleans send, and
the sum of (|u| + 1/256)^2 is convex: it is at most the mean of what Booleans spend. What a
Boolean spends is bounded in `dpstream.randomizers.change_kernel`, by a concave function of its
number of changes: the mean of bounds is at most R, the bound of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.following_devices import (
    MAX_EPOCHS,
    NEW,
    NOTHING,
    TOGETHER,
    UNKNOWN,
    FollowingDevices,
)
from dpstream.randomizers.given_values import checked_positions
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants, hexadecimal
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.panel_rows import ONE
from dpstream.topics.message_formats import MessageFormat

STEPS: Final = 256
"""Steps per unit: messages are multiples of 1/256."""
ZERO: Final = 1 << 15
"""Message that encodes u = 0."""
SUM_ZERO: Final = 1 << 62
"""Released number that encodes a sum of 0."""
MOST_SUM: Final = 1 << 57
"""Maximum absolute value of a released sum, in steps: enough for 2^40 devices and the noise."""
MAX_BOOST: Final = (ZERO - 1) / STEPS - 0.5
MAX_CHANGES: Final = 1 << 20
_MAX_SQUARED_NORM_BUDGET = 1 << 52
MESSAGE_FORMAT: Final = MessageFormat(np.dtype("<u2"))
SUM_FORM: Final = MessageFormat(np.dtype("<u8"))


@dataclass(frozen=True, slots=True)
class ShuffledValueStreamLaw(Constants):
    """All constants of a job.

    Attributes:
        epsilon, delta: Privacy loss of a user's whole stream.
        max_changes: k, the number of boosted changes per device; of numbers, the length of the path
            that is boosted.
        calibration: Marker that distinguishes these constants from those of other shuffled counts.
        squared_norm_budget: R, the maximum sum of a device's squared messages, in units of 1/65536.
        deviation: sigma, the standard deviation of a window's noise, in steps of 1/256.
        boost: a, the amount that a change adds to u.
        decay: b, the fraction of the boost that remains one epoch later.
    """

    last_epoch: int
    epsilon: float
    delta: float
    max_changes: int
    calibration: Literal["normal"]
    squared_norm_budget: int
    deviation: int
    boost: float = hexadecimal()
    decay: float = hexadecimal()

    def __post_init__(self) -> None:
        for name, value, most in (
            ("last_epoch", self.last_epoch, MAX_EPOCHS),
            ("max_changes", self.max_changes, MAX_CHANGES),
            ("squared_norm_budget", self.squared_norm_budget, _MAX_SQUARED_NORM_BUDGET),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}; expected an integer from 1 to {most:,}")
        if self.calibration != "normal":
            raise ValueError(f"calibration is {self.calibration!r}; expected 'normal'")
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(
                f"epsilon is {self.epsilon} and delta is {self.delta}; expected a positive finite "
                "epsilon and a delta above 0 and below 1"
            )
        if not (0 <= self.boost <= MAX_BOOST and 0 <= self.decay < 1):
            raise ValueError(
                f"boost is {self.boost} and decay is {self.decay}; expected boost 0 to {MAX_BOOST} "
                "and decay at least 0 and below 1"
            )
        NormalNoise(self.deviation)

    @property
    def noise(self) -> NormalNoise:
        return NormalNoise(self.deviation)

    @property
    def most(self) -> int:
        """Maximum absolute value of a message, in steps."""
        return math.ceil((self.boost + 0.5) * STEPS)

    @property
    def contributors(self) -> None:
        """Number of honest users that the guarantee assumes: None; the shuffler adds the noise."""
        return None

    @property
    def dummies(self) -> str:
        return "shuffle"

    @property
    def message_format(self) -> MessageFormat:
        return MESSAGE_FORMAT

    @property
    def sum_form(self) -> MessageFormat:
        return SUM_FORM

    def capacity(self, epoch: int, contributors: int) -> int:
        return contributors

    def check_messages(self, epoch: int, words: NDArray[np.uint16]) -> None:
        """Raise `ValueError` unless devices can send these messages, shape (n, 1), at the epoch."""
        if not 1 <= epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch} is out of range; expected 1 to {self.last_epoch}")
        least, most = ZERO - self.most, ZERO + self.most
        if words.size and not least <= int(words.min()) <= int(words.max()) <= most:
            wrong = words[(words < least) | (words > most)][0]
            raise ValueError(
                f"message {wrong} at epoch {epoch} is out of range; expected {least} to {most}"
            )

    def noisy_sum(
        self,
        words: NDArray[np.uint16],
        counts: NDArray[np.unsignedinteger] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint64]:
        """Return the noisy sum of a window's messages, which the shuffler releases.

        `words`, shape (n, 1), are messages that pass `check_messages`. `counts`, shape (n,), are
        their multiplicities, by default 1. `rng` yields cryptographic randomness that only this
        window uses. Returns uint64, shape (1, 1): the sum in steps of 1/256, plus 2^62.
        """
        steps = words[:, 0].astype(np.int64) - ZERO
        total = int(steps.sum()) if counts is None else int(steps @ counts.astype(np.int64))
        return np.array([[SUM_ZERO + total + self.noise.draw(rng)]], np.uint64)


class ShuffledValueStream(FollowingDevices[ShuffledValueStreamLaw]):
    """Devices of one horizon.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate
    >>> requested = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
    >>> devices, rng = ShuffledValueStream(calibrate(requested, 170, 100)), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> sent = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(float(sent.mean() - ZERO) / STEPS, 2)  # 1 - 1/2 plus the boost of a change
    3.57
    """

    def __init__(self, law: ShuffledValueStreamLaw) -> None:
        super().__init__(law, law)
        self._most = law.most
        # Remaining squared-norm budget, in units of 1/65536.
        self._left = self._declare("left", np.int64, new=law.squared_norm_budget)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbors="any two streams of a user's values, reported at the same epochs",
            trust=(
                "the shuffler to sum the messages of a window and noise, to release only the sum, "
                "and to keep its noise key secret; it sees the messages themselves"
            ),
            basis="bound",
        )

    def least_delta(self) -> float:
        """Bound delta from below, at the largest distance within the squared-norm budget."""
        law = self.law
        return least_delta.of_normal(
            2 * math.sqrt(law.squared_norm_budget), law.deviation, law.epsilon
        )

    @classmethod
    def restore(
        cls,
        law: ShuffledValueStreamLaw,
        arrays: Mapping[str, NDArray[np.generic]],
        epoch: int,
    ) -> Self:
        devices = super().restore(law, arrays, epoch)
        if not ((devices._left >= 0) & (devices._left <= law.squared_norm_budget)).all():
            raise ValueError(
                "state array 'left' has a value out of range; expected 0 to "
                f"{law.squared_norm_budget}. The state belongs to another job"
            )
        return devices

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        """Return one message from each present device, 256 u + 2^15: uint16, shape (devices, 1).

        Each message uses one random 64-bit integer.
        """
        now = self._start_epoch(epoch, values, present)
        words = [np.zeros(0, np.uint16)]
        for start in range(0, self.population, TOGETHER):
            devices = slice(start, start + TOGETHER)
            observed = None if present is None else present[devices]
            self._take_in(devices, now[devices], observed)
            words.append(self._words(devices, now[devices], observed, rng))
        return np.concatenate(words)[:, None]

    def _words(
        self,
        devices: slice,
        now: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        """Draw the messages of some devices, and charge each device's budget for its message."""
        exact, left = (now - 0.5 + self._followed[devices]) * STEPS, self._left[devices]
        places = slice(None) if present is None else np.flatnonzero(present)
        squared_norm_budget = left[places]
        # In normal use devices never reach these limits, which guarantee the loss for any input and
        # for any effect of absence on the boosted changes. Integer roots are exact below 2^52.
        most = np.minimum(np.floor(np.sqrt(squared_norm_budget)), self._most)
        clipped = np.clip(exact[places], -most, most)
        lower = np.floor(clipped)
        # The float64 fraction could be 1. Probabilities of rounding up are multiples of 2^-64.
        share = np.minimum(clipped - lower, 1 - 2.0**-53)
        limits = np.ldexp(share, 64).astype(np.uint64)
        up = rng.integers(0, 1 << 64, len(limits), dtype=np.uint64) < limits
        steps: NDArray[np.int64] = lower.astype(np.int64) + up
        left[places] = squared_norm_budget - steps * steps
        return np.asarray(steps + ZERO, np.uint16)


class ShuffledNumberStream(ShuffledValueStream):
    """Devices of one horizon whose values are numbers x from 0 to 1, in units of 2^-32.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate
    >>> requested = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
    >>> devices, rng = ShuffledNumberStream(calibrate(requested, 170, 100)), seeded_generator(1)
    >>> devices.enroll(1000, rng)
    >>> sent = devices.report(1, np.full(1000, ONE // 4), None, rng)
    >>> round(float(sent.mean() - ZERO) / STEPS, 2)  # 1/4 - 1/2 plus a quarter of the boost
    0.52
    """

    def __init__(self, law: ShuffledValueStreamLaw) -> None:
        super().__init__(law)
        # The last known value is the last bit of `value`, plus `fraction` in units of 2^-32.
        self._fraction = self._declare("fraction", np.uint32)
        # Length of the path of values: `changes`, minus `spare` in units of 2^-32.
        self._spare = self._declare("spare", np.uint32)

    def _checked(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        observed: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64]:
        return checked_positions(epoch, values, observed, self.population, ONE)

    def _take_in(
        self, devices: slice, now: NDArray[Any], observed: NDArray[np.bool_] | None
    ) -> None:
        most = self.law.max_changes * ONE
        value, made, followed = (
            self._value[devices],
            self._changes[devices],
            self._followed[devices],
        )
        fraction, spare = self._fraction[devices], self._spare[devices]
        value[value == NEW] = 0
        moved = now - (value & 1).astype(np.int64) * ONE - fraction
        if observed is not None:
            moved[~observed] = 0
        path = made.astype(np.int64) * ONE - spare
        left = np.where(value < UNKNOWN, np.maximum(most - path, 0), 0)
        boosted = np.clip(moved, -left, left)
        path = np.minimum(path + np.abs(moved), most + ONE)
        begun = -(-path // ONE)
        made[:], spare[:] = begun, begun * ONE - path
        followed *= self.law.decay
        followed[np.abs(followed) < NOTHING] = 0
        followed += self.law.boost * (boosted / ONE)
        known = slice(None) if observed is None else observed
        if observed is not None:
            value[~observed] |= UNKNOWN
        value[known] = now[known] >> 32
        fraction[known] = now[known] & (ONE - 1)

    def _words(
        self,
        devices: slice,
        now: NDArray[Any],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        return super()._words(devices, now / ONE, present, rng)
