"""The shuffled twin of value_stream: one word an epoch, and one noisy sum is all that is released.

A device sends u = x - 1/2 + f at every epoch, where x is its value and f follows its changes
(`dpstream.randomizers.following_devices`), rounded at random to one of the two multiples of
1/256 next to it. The shuffle stage adds up the words of a window, and normal noise, and releases
that number and no word. What u^2 of a device adds up to, as it was rounded, is its *clock*, which
never runs beyond R. So two streams of a device differ in what they add to all sums by a Euclidean
distance of at most 2 sqrt(R), whatever they are, however often they change, and also where they
depend on what was published; the noise is sized on that.

Noise is N(0, sigma^2) rounded to a multiple of 1/256, as sums are: which is the same as rounding a
sum with noise, and says no more than that does.

A device that was silent at the epoch before does not know whether its value has changed since then
or earlier. It boosts nothing: what it has missed counts as a change, and is followed like a later
one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers import least_delta
from dpstream.randomizers.following_devices import MAX_EPOCHS, TOGETHER, FollowingDevices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.laws import Constants, hexadecimal
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.topics.word_forms import WordForm

STEPS: Final = 256
"""Words are multiples of 1/256."""

ZERO: Final = 1 << 15
"""The word of u = 0."""

SUM_ZERO: Final = 1 << 62
"""The word of a sum of 0."""

MOST_SUM: Final = 1 << 57
"""Of 2^40 devices and the noise; a released sum is at most so far from 0, in steps."""

MAX_BOOST: Final = (ZERO - 1) / STEPS - 0.5
MAX_CHANGES: Final = 1 << 20
_MAX_CLOCK = 1 << 52

WORD_FORM: Final = WordForm(np.dtype("<u2"))
SUM_FORM: Final = WordForm(np.dtype("<u8"))


@dataclass(frozen=True, slots=True)
class ShuffledValueStreamLaw(Constants):
    """All constants of a job.

    Attributes:
        last_epoch: T, number of epochs.
        epsilon: of a user's whole stream.
        delta: the same.
        changes: k, how many of a device are boosted.
        calibration: by which its law is told from others of shuffled counts.
        clock: R, what the squares of a device's words may add up to, in steps of 1/65536.
        deviation: sigma, of the noise of a window, in steps of 1/256.
        boost: a, what a change adds to u.
        decay: b, the share of it that is left an epoch later.

    Raises:
        ValueError: the fields contradict each other.
    """

    last_epoch: int
    epsilon: float
    delta: float
    changes: int
    calibration: Literal["normal"]
    clock: int
    deviation: int
    boost: float = hexadecimal()
    decay: float = hexadecimal()

    def __post_init__(self) -> None:
        for name, value, most in (
            ("last_epoch", self.last_epoch, MAX_EPOCHS),
            ("changes", self.changes, MAX_CHANGES),
            ("clock", self.clock, _MAX_CLOCK),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}, must be a whole number from 1 to {most:,}")
        if self.calibration != "normal":
            raise ValueError(f"calibration is {self.calibration!r}, must be 'normal'")
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(f"epsilon is {self.epsilon} and delta {self.delta}")
        if not (0 <= self.boost <= MAX_BOOST and 0 <= self.decay < 1):
            raise ValueError(f"a boost of {self.boost} and a decay of {self.decay}")
        NormalNoise(self.deviation)

    @property
    def noise(self) -> NormalNoise:
        """Of the sum of a window, in steps of 1/256."""
        return NormalNoise(self.deviation)

    @property
    def most(self) -> int:
        """The largest word there is, in steps from 0."""
        return math.ceil((self.boost + 0.5) * STEPS)

    @property
    def contributors(self) -> None:
        """How many honest ones the guarantee rests on: none, the stage adds the noise."""
        return None

    @property
    def dummies(self) -> str:
        """Who adds noise."""
        return "shuffle"

    @property
    def word_form(self) -> WordForm:
        """Of what devices send."""
        return WORD_FORM

    @property
    def sum_form(self) -> WordForm:
        """Of what is released."""
        return SUM_FORM

    def capacity(self, epoch: int, contributors: int) -> int:
        """How many words so many contributors send at an epoch: one each."""
        return contributors

    def check_words(self, epoch: int, words: NDArray[np.uint16]) -> None:
        """See that words, shape (n, 1), can be sent by devices.

        Raises:
            ValueError: the epoch lies outside the horizon, or one cannot.
        """
        if not 1 <= epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch}, must be from 1 to {self.last_epoch}")
        least, most = ZERO - self.most, ZERO + self.most
        if words.size and not least <= int(words.min()) <= int(words.max()) <= most:
            wrong = words[(words < least) | (words > most)][0]
            raise ValueError(f"word {wrong} at epoch {epoch}, must be from {least} to {most}")

    def noisy_sum(
        self,
        words: NDArray[np.uint16],
        counts: NDArray[np.unsignedinteger] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint64]:
        """What the shuffle stage releases of a window: the sum of its words, with noise.

        Args:
            words: shape (n, 1), as `check_words` lets pass.
            counts: shape (n,), how often each is there; None for once each.
            rng: cryptographic randomness of this window alone.

        Returns:
            one word, uint64, shape (1, 1): the sum in steps of 1/256, plus 2^62.
        """
        steps = words[:, 0].astype(np.int64) - ZERO
        total = int(steps.sum()) if counts is None else int(steps @ counts.astype(np.int64))
        return np.array([[SUM_ZERO + total + self.noise.draw(rng)]], np.uint64)


class ShuffledValueStream(FollowingDevices[ShuffledValueStreamLaw]):
    """The devices of one horizon.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate
    >>> asked = ShuffledCountsParameters(1, 1e-6, changes=4, dummies="shuffle")
    >>> devices, rng = ShuffledValueStream(calibrate(asked, 170, 100)), seeded_generator(1)
    >>> devices.enrol(1000, rng)
    >>> sent = devices.report(1, np.ones(1000, np.int8), None, rng)
    >>> round(float(sent.mean() - ZERO) / STEPS, 2)  # 1 - 1/2, and the boost of a change
    3.57

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledValueStreamLaw) -> None:
        super().__init__(law, law)
        self._most = law.most
        # Of its clock, in steps of 1/65536.
        self._left = self._declare("left", np.int64, new=law.clock)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a user's whole stream; the module says why."""
        return Guarantee(
            epsilon=self.law.epsilon,
            delta=self.law.delta,
            unit="stream",
            neighbours="any two streams of a user's values, reported at the same epochs",
            trust=(
                "the shuffle stage to add up the words of a window and noise, to release the sum "
                "alone, and to keep its noise key secret; it sees the words themselves"
            ),
            basis="bound",
        )

    def least_delta(self) -> float:
        """See `Devices.least_delta`: the largest distance that the clock leaves room for."""
        law = self.law
        return least_delta.of_normal(2 * math.sqrt(law.clock), law.deviation, law.epsilon)

    @classmethod
    def restore(
        cls,
        law: ShuffledValueStreamLaw,
        arrays: Mapping[str, NDArray[np.generic]],
        epoch: int,
    ) -> Self:
        """See `Devices.restore`; a clock that shows more than there is of it is refused."""
        devices = super().restore(law, arrays, epoch)
        if not ((devices._left >= 0) & (devices._left <= law.clock)).all():
            raise ValueError(
                f"state array left has a value that is not from 0 to {law.clock}: "
                "it is of another law"
            )
        return devices

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        """One word of everybody present: uint16, shape (devices, 1), u in steps of 1/256 + 2^15.

        A random word is spent on each.
        """
        now = self._begin_epoch(epoch, values, present)
        words = [np.zeros(0, np.uint16)]
        for start in range(0, self.population, TOGETHER):
            devices = slice(start, start + TOGETHER)
            told = None if present is None else present[devices]
            self._take_in(devices, now[devices], told)
            words.append(self._words(devices, now[devices], told, rng))
        return np.concatenate(words)[:, None]

    def _words(
        self,
        devices: slice,
        now: NDArray[np.int8],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint16]:
        """The words of some devices, which are charged for them."""
        exact, left = (now - 0.5 + self._followed[devices]) * STEPS, self._left[devices]
        places = slice(None) if present is None else np.flatnonzero(present)
        clock = left[places]
        # Devices that follow the rules never reach these limits. They make the loss what it is for
        # those that do not, and for whatever silence does to the changes that are boosted. Numbers
        # below 2^52 have the right integer root.
        most = np.minimum(np.floor(np.sqrt(clock)), self._most)
        clipped = np.clip(exact[places], -most, most)
        lower = np.floor(clipped)
        # What is next to 1 may be 1 as a float; up with a probability that is a multiple of 2^-64.
        share = np.minimum(clipped - lower, 1 - 2.0**-53)
        limits = np.ldexp(share, 64).astype(np.uint64)
        up = rng.integers(0, 1 << 64, len(limits), dtype=np.uint64) < limits
        steps: NDArray[np.int64] = lower.astype(np.int64) + up
        left[places] = clock - steps * steps
        return np.asarray(steps + ZERO, np.uint16)
