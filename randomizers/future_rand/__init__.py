"""FutureRand: one bit per report, one privacy loss for a whole stream (Algorithm 1).

On enrollment, and only then, a device draws an order h and k signs. At every epoch divisible by 2^h
it computes the change of its value since the last such epoch: +1, 0 or -1, the partial sum of a
dyadic interval. It reports the order and one bit: a fair coin if the partial sum is 0, otherwise
the partial sum times the device's next sign. A change after all signs are used makes the device
*exhausted*: from then on it reports only fair coins.

A whole population of devices is stored in arrays; a single device is a population of one.

Reference: *Randomize the Future*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.devices import Devices
from dpstream.randomizers.draws import draw_categories, random_bits
from dpstream.randomizers.dyadic import FutureRandLaw, check_signs, orders_due
from dpstream.randomizers.given_values import check_epoch, checked_booleans
from dpstream.randomizers.guarantee import Guarantee

NEWCOMER = 1 << 7
"""Number added to the message of a device enrolled within the interval that it reports on."""

# A device's value at its last boundary, if not 0 or 1. A device that was absent at the boundary
# cannot know its next partial sum. A device that has not seen an epoch had the value 0 at every
# boundary. A device enrolled after the boundary had the value 0 there, and reports as a newcomer.
_UNKNOWN, _NEW, _NEWCOMER = -1, 2, 3
# Number of signs drawn at once, which bounds the memory of enrollment.
_CHUNK_SIGNS = 1 << 22


@dataclass(frozen=True, slots=True)
class FutureRandParameters:
    """Parameters of FutureRand.

    Attributes:
        epsilon: Privacy loss of a user's whole stream.
        max_changes: Number of changes in a user's value that are tracked.
        calibration: "optimal", the most accurate mechanism for this epsilon; or "published", the
            mechanism of the paper, which spends a fifth to a half of epsilon.
        estimator: "tree", which combines all available intervals; or "prefix", the estimator of the
            paper, which uses the fewest. Devices do not depend on it.
    """

    epsilon: float
    max_changes: int
    calibration: Literal["optimal", "published"] = "optimal"
    estimator: Literal["tree", "prefix"] = "tree"

    def __post_init__(self) -> None:
        check_signs(self.epsilon, self.max_changes, self.estimator)
        if self.calibration not in ("optimal", "published"):
            raise ValueError(
                f"calibration is {self.calibration!r}; expected 'optimal' or 'published'"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))


class FutureRand(Devices[FutureRandLaw]):
    """Devices of a FutureRand job for one horizon, each with the order and signs it drew once.

    A device's absence must not depend on its value. A device reports a partial sum only if it was
    present at both ends of the interval. If it guessed a value that it missed, it would report some
    changes later than other devices, which biases estimates. A device enrolled within the interval
    need not have been present at the start. These newcomers are marked and counted separately, as
    enrollment times are public.

    >>> from dpstream.randomizers.future_rand.calibration import calibrate
    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> rng = seeded_generator(1)
    >>> parameters = FutureRandParameters(epsilon=4, max_changes=2)
    >>> devices = FutureRand(calibrate(parameters, last_epoch=4))
    >>> devices.enroll(1000, rng)
    >>> first = devices.report(1, np.zeros(1000, np.int8), None, rng)
    >>> reports = devices.report(2, np.ones(1000, np.int8), None, rng)
    >>> np.unique(reports // 2)  # the orders that are due
    array([0, 1], dtype=uint8)
    """

    word_dtype = np.dtype(np.uint8)
    width = 1

    def __init__(self, law: FutureRandLaw) -> None:
        super().__init__(law)
        self._signs_of_order = np.array([composed.k for composed in law.composed], np.uint16)
        most = int(self._signs_of_order.max())
        self._order = self._declare("order", np.uint8, new=None, allowed=range(len(law.composed)))
        # Bit i, counted from the lowest of the first byte, is 1 if sign i is +1.
        self._signs = self._declare("signs", np.uint8, (-(-most // 8),), new=None)
        # Number of signs used; one more than the device has marks it as exhausted.
        self._used = self._declare("used", np.min_scalar_type(most + 1))
        # The value at the last epoch divisible by 2^order.
        self._boundary = self._declare("boundary", np.int8, new=_NEW)
        self._index()

    @property
    def exhausted(self) -> int:
        return int(np.count_nonzero(self._used > self._signs_of_order[self._order]))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for a user's whole stream, computed from the mechanism's weights.

        The probability of an output is the mass of the sign vectors that start with the signs seen,
        times one half for each fair coin. If j signs are seen, that mass is between 2^(k-j) times
        the smallest and 2^(k-j) times the largest weight, for any stream (section 5.4). So the
        ratio of the two weights bounds the loss. Two streams attain this bound if the horizon is at
        least 2k.
        """
        attained = self.law.horizon >= 2 * self.law.composed[0].k
        return Guarantee(
            epsilon=self.law.loss,
            delta=0.0,
            unit="stream",
            neighbors=(
                "any two streams of a user's values (changes beyond max_changes are not counted, "
                "but equally protected)"
            ),
            trust=(
                "none; it holds against everyone who sees the reports; which devices exist and "
                "when they report is public"
            ),
            basis="exact" if attained else "bound",
        )

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        order = draw_categories(self.law.order_weights, count, rng).astype(np.uint8)
        signs = np.zeros((count, self._signs.shape[1]), np.uint8)
        for index, composed in enumerate(self.law.composed):
            devices = np.flatnonzero(order == index)
            step = max(1, _CHUNK_SIGNS // composed.k)
            for start in range(0, len(devices), step):
                chunk = devices[start : start + step]
                packed = np.packbits(composed.sample(len(chunk), rng) > 0, 1, bitorder="little")
                signs[chunk, : packed.shape[1]] = packed
        return {"order": order, "signs": signs}

    def due(self, epoch: int) -> NDArray[np.intp]:
        return np.concatenate(self._members[: orders_due(epoch)])

    def report(
        self,
        epoch: int,
        values: NDArray[np.integer] | NDArray[np.bool_],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        """Report the partial sums that are due, uint8, shape (reports, 1).

        A message is 2 * order + 1 for the sign +1, or 2 * order for -1; plus `NEWCOMER` if the
        device was enrolled within the interval.
        """
        check_epoch(epoch, after=self.epoch, last_epoch=self.law.horizon)
        values = checked_booleans(epoch, values, present, self.population)
        self._pass_over(epoch)
        due = [
            self._report_order(order, values, present, rng) for order in range(orders_due(epoch))
        ]
        self.epoch = epoch
        return np.concatenate(due)[:, None]

    def _index(self) -> None:
        """Group the devices by order, so that an epoch touches only those that are due."""
        by_order = np.argsort(self._order, kind="stable")
        ends = np.cumsum(np.bincount(self._order, minlength=len(self.law.composed)))
        self._members = np.split(by_order, ends[:-1])
        self._seen = self.population - int(np.count_nonzero(self._boundary == _NEW))

    def _pass_over(self, epoch: int) -> None:
        """Drop values at skipped interval boundaries, and initialize newly enrolled devices."""
        for order, members in enumerate(self._members):
            if (epoch - 1) >> order > self.epoch >> order:
                self._boundary[members] = _UNKNOWN
        orders = self._order[self._seen :].astype(np.uint64)
        began = np.uint64(epoch - 1) >> orders > 0
        self._boundary[self._seen :] = np.where(began, _NEWCOMER, 0)
        self._seen = self.population

    def _report_order(
        self,
        order: int,
        values: NDArray[np.int8],
        present: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> NDArray[np.uint8]:
        members = self._members[order]
        if present is not None:
            here = present[members]
            self._boundary[members[~here]] = _UNKNOWN
            members = members[here]
        before, now = self._boundary[members], values[members]
        self._boundary[members] = now
        known = before != _UNKNOWN
        if not known.all():
            members, before, now = members[known], before[known], now[known]
        newcomers = np.flatnonzero(before == _NEWCOMER)
        before[newcomers] = 0
        bits = random_bits(rng, len(members))
        changed = np.flatnonzero(before != now)
        used, signs = self._used[members[changed]], self._signs_of_order[order]
        self._used[members[changed]] = np.minimum(used, signs) + 1
        changed, used = changed[used < signs], used[used < signs]
        sign_bits = self._signs[members[changed], used >> 3] >> (used & 7) & 1
        # The partial sum is +1 if the value is now 1; equal bits make a product of +1.
        bits[changed] = sign_bits == now[changed]
        words = (bits + 2 * order).astype(np.uint8, copy=False)
        words[newcomers] += NEWCOMER
        return words
