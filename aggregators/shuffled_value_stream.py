"""The shuffled twin of value_stream, server side: one noisy sum an epoch, followed through time.

A sum of u = x - 1/2 + f of everybody present, and half of their number, is their count plus what
they add for the changes that they follow: `dpstream.aggregators.value_stream` says how that is
taken off. It works without a gain here, and its noise is what the shuffle stage has added once,
whatever the number of users; beside it there is that of rounding, at most a quarter of a squared
step for each.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Attendance
from dpstream.aggregators.followed import FollowedCounts, Received, unseen_deviation
from dpstream.aggregators.law_aggregator import check_form
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MOST_SUM,
    STEPS,
    SUM_ZERO,
    ShuffledValueStreamLaw,
)

_ENTRY = np.dtype([("epoch", "<u8"), ("windows", "<i8"), ("steps", "<i8")])

# A window is released once; so many sums of 2^57 fit a number of 8 bytes.
_MOST_WINDOWS = 32


class ShuffledValueStreamAggregator(FollowedCounts[ShuffledValueStreamLaw]):
    """Noisy sums, by epoch; equal whatever the order, and however they were split and merged.

    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate
    >>> asked = ShuffledCountsParameters(1, 1e-6, changes=4, dummies="shuffle")
    >>> aggregator = ShuffledValueStreamAggregator(calibrate(asked, 170, 100))
    >>> aggregator.add(1, np.array([[2**62 + 512]], np.uint64), None)
    >>> aggregator.sums(1)  # windows, and their sum in steps of 1/256
    (1, 512)

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledValueStreamLaw) -> None:
        super().__init__(law)
        self._sums: dict[int, tuple[int, int]] = {}

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be what is released of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint64 of shape
                (sums, 1), or a sum is too far from 0.
        """
        check_form(epoch, self.law.last_epoch, words, np.uint64)
        least, most = SUM_ZERO - MOST_SUM, SUM_ZERO + MOST_SUM
        if words.size and not least <= int(words.min()) <= int(words.max()) <= most:
            wrong = words[(words < least) | (words > most)][0]
            raise ValueError(f"sum {wrong} at epoch {epoch}, must be from {least} to {most}")

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        times = [1] * len(words) if counts is None else counts.tolist()
        steps = [word - SUM_ZERO for word in words[:, 0].tolist()]
        self._add(epoch, sum(times), sum(a * b for a, b in zip(steps, times, strict=True)))

    def sums(self, epoch: int) -> tuple[int, int]:
        """Of an epoch: how many sums were received, one of each window, and what they add up to."""
        return self._sums.get(epoch, (0, 0))

    def _merge(self, other: Self) -> None:
        for epoch, (windows, steps) in other._sums.items():
            self._add(epoch, windows, steps)

    def to_bytes(self) -> bytes:
        """For every epoch with sums: epoch (u8), how many (i8), their sum (i8); ascending."""
        entries = [(epoch, *sums) for epoch, sums in sorted(self._sums.items())]
        return np.array(entries, _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ShuffledValueStreamLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no sums of this horizon.
        """
        if len(data) % _ENTRY.itemsize:
            raise ValueError(f"sums of {len(data)} bytes, an epoch takes {_ENTRY.itemsize}")
        aggregator, before = cls(law), 0
        for epoch, windows, steps in np.frombuffer(data, _ENTRY).tolist():
            if not before < epoch <= law.last_epoch:
                raise ValueError(
                    f"sums of epoch {epoch} after {before}, the horizon has {law.last_epoch}"
                )
            if not 1 <= windows <= _MOST_WINDOWS or abs(steps) > windows * MOST_SUM:
                raise ValueError(f"no {windows} sums of epoch {epoch} add up to {steps}")
            aggregator._sums[epoch] = windows, steps
            before = epoch
        return aggregator

    def reports(self, epoch: int, attendance: Attendance) -> int:
        """How many devices are in the sums of an epoch."""
        return int(attendance.contributors[epoch])

    def _received(self, epoch: int, attendance: Attendance) -> Received | None:
        windows, steps = self.sums(epoch)
        present = int(attendance.contributors[epoch])
        population = int(attendance.population[epoch])
        if not windows or not present:
            return None
        scale = population / present
        variance = scale**2 * _variance(self.law, windows, present)
        return Received(scale * (steps / STEPS + present / 2), variance, present, population)

    def _add(self, epoch: int, windows: int, steps: int) -> None:
        if not windows:
            return
        held, total = self.sums(epoch)
        if held + windows > _MOST_WINDOWS:
            raise ValueError(
                f"{held + windows} sums of epoch {epoch}, at most {_MOST_WINDOWS} can be"
            )
        self._sums[epoch] = held + windows, total + steps
        self._forget(epoch)


def received_errors(
    law: ShuffledValueStreamLaw, present: int, population: int, value: float
) -> tuple[float, float]:
    """As `dpstream.aggregators.value_stream.received_errors`, of the one sum of an epoch."""
    variance = (population / present) ** 2 * _variance(law, 1, present)
    return variance, unseen_deviation(value, population, present)


def predicted_deviations(
    law: ShuffledValueStreamLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """The standard deviations to expect when everybody reports: in users, shape (last_epoch,)."""
    kernel = Kernel(law.boost, law.decay)
    deviations: NDArray[np.float64] = np.sqrt(
        _variance(law, 1, users) * kernel.variances(last_epoch)
    )
    return deviations


def _variance(law: ShuffledValueStreamLaw, windows: int, present: int) -> float:
    """Of the noise of sums, and of the rounding of the words in them, in users."""
    of_rounding = present / 4 if law.boost else 0.0
    return (windows * law.noise.variance + of_rounding) / STEPS**2
