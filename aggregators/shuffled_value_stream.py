"""Track one noisy sum per epoch: the shuffled counterpart of value_stream.

A present device with value x contributes u = x - 1/2 + f, where f is the boost for its changes. The
sum of u, plus half the number of present devices, is the count of ones plus the sum of boosts.
`dpstream.aggregators.value_stream` describes how boosts are removed. Here there is no gain, and the
shuffler adds noise once, whatever the number of users. Rounding adds a variance of at most a
quarter of a squared step per user. Without a boost, Booleans are not rounded.

If values are numbers from 0 to 1 (`ShuffledNumberStream`), the count of ones is their sum.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.followed import FollowedCounts, Received, unseen_deviation
from dpstream.aggregators.law_aggregator import check_format, entries_by_epoch
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MOST_SUM,
    STEPS,
    SUM_ZERO,
    ShuffledValueStreamLaw,
)

_ENTRY = np.dtype([("epoch", "<u8"), ("windows", "<i8"), ("steps", "<i8")])

# Maximum number of windows of an epoch: sums of up to 2^57 from that many fit in 8 bytes.
_MOST_WINDOWS = 32


class ShuffledValueStreamAggregator(FollowedCounts[ShuffledValueStreamLaw]):
    """Noisy sums by epoch; the state is independent of input order, splits and merges.

    >>> from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
    >>> from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate
    >>> requested = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
    >>> aggregator = ShuffledValueStreamAggregator(calibrate(requested, 170, 100))
    >>> aggregator.add(1, np.array([[2**62 + 512]], np.uint64), None)
    >>> aggregator.sums(1)  # windows, and their sum in steps of 1/256
    (1, 512)
    """

    rounded: ClassVar[bool] = False
    """True if messages are rounded even without a boost."""

    def __init__(self, law: ShuffledValueStreamLaw) -> None:
        super().__init__(law)
        self._sums: dict[int, tuple[int, int]] = {}

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint64)
        least, most = SUM_ZERO - MOST_SUM, SUM_ZERO + MOST_SUM
        if words.size and not least <= int(words.min()) <= int(words.max()) <= most:
            wrong = words[(words < least) | (words > most)][0]
            raise ValueError(f"sum at epoch {epoch} is {wrong}; expected {least} to {most}")

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
        """Return the number of sums received for an epoch (one per window) and their total."""
        return self._sums.get(epoch, (0, 0))

    def _merge(self, other: Self) -> None:
        for epoch, (windows, steps) in other._sums.items():
            self._add(epoch, windows, steps)

    def to_bytes(self) -> bytes:
        """Serialize epoch (uint64), number and total of sums (int64) of every epoch with sums."""
        entries = [(epoch, *sums) for epoch, sums in sorted(self._sums.items())]
        return np.array(entries, _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ShuffledValueStreamLaw, data: bytes) -> Self:
        aggregator = cls(law)
        for epoch, entry in entries_by_epoch(data, _ENTRY, law.last_epoch, "sums"):
            _, windows, steps = entry.tolist()
            if not 1 <= windows <= _MOST_WINDOWS or abs(steps) > windows * MOST_SUM:
                raise ValueError(f"{windows} sums of epoch {epoch} have an invalid total, {steps}")
            aggregator._sums[epoch] = windows, steps
        return aggregator

    def reports(self, epoch: int, participation: Participation) -> int:
        return int(participation.contributors[epoch])

    def _received(self, epoch: int, participation: Participation) -> Received | None:
        windows, steps = self.sums(epoch)
        present = int(participation.contributors[epoch])
        population = int(participation.population[epoch])
        if not windows or not present:
            return None
        scale = population / present
        variance = scale**2 * _variance(self.law, windows, present, rounded=self.rounded)
        return Received(scale * (steps / STEPS + present / 2), variance, present, population)

    def _add(self, epoch: int, windows: int, steps: int) -> None:
        if not windows:
            return
        held, total = self.sums(epoch)
        if held + windows > _MOST_WINDOWS:
            raise ValueError(
                f"{held + windows} sums at epoch {epoch}; expected at most {_MOST_WINDOWS}"
            )
        self._sums[epoch] = held + windows, total + steps
        self._drop(epoch)


def received_errors(
    law: ShuffledValueStreamLaw,
    present: int,
    population: int,
    value: float,
    *,
    windows: int = 1,
    rounded: bool = False,
) -> tuple[float, float]:
    """Compute `dpstream.aggregators.value_stream.received_errors` for an epoch with noisy sums.

    `rounded` is as in the aggregator.
    """
    variance = (population / present) ** 2 * _variance(law, windows, present, rounded=rounded)
    return variance, unseen_deviation(value, population, present)


class ShuffledNumberStreamAggregator(ShuffledValueStreamAggregator):
    """Noisy sums of messages about numbers from 0 to 1; estimates are sums of numbers."""

    rounded = True


def predicted_deviations(
    law: ShuffledValueStreamLaw, last_epoch: int, users: int, *, rounded: bool = False
) -> NDArray[np.float64]:
    """Predict standard errors of counts, in users, if all devices report; shape (last_epoch,).

    `rounded` is as in the aggregator.
    """
    kernel = Kernel(law.boost, law.decay)
    deviations: NDArray[np.float64] = np.sqrt(
        _variance(law, 1, users, rounded=rounded) * kernel.variances(last_epoch)
    )
    return deviations


def _variance(
    law: ShuffledValueStreamLaw, windows: int, present: int, *, rounded: bool = False
) -> float:
    """Return the variance of sums due to noise and rounding, in users."""
    of_rounding = present / 4 if law.boost or rounded else 0.0
    return (windows * law.noise.variance + of_rounding) / STEPS**2
