"""Track shuffled counts over time.

The received count is the number of an epoch's messages, minus those always sent, scaled to all
devices. It estimates the count plus r times its change, where r is the boost. A published estimate
is r times the previous one plus the received count, divided by r + 1. This is unbiased as long as
all changes are boosted, and averages noise over about 2r + 1 epochs. Changes that are not boosted,
or fall on a suppressed epoch, appear gradually: after m epochs, at most (r / (r + 1))^m is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate, Participation
from dpstream.aggregators.law_aggregator import LawAggregator, check_format, entries_by_epoch
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw

_COUNT_CAP = 2**53
_ENTRY = np.dtype([("epoch", "<u8"), ("count", "<i8")])


@dataclass(frozen=True, slots=True)
class _Followed:
    """The estimate of an epoch, in users; epoch 0 is before the first.

    `absence_error` is the standard deviation due to absent devices. `known` is True if any epoch so
    far was released; `released` is True if this one was.
    """

    epoch: int = 0
    value: float = 0.0
    variance: float = 0.0
    absence_error: float = 0.0
    known: bool = False
    released: bool = False


class ShuffledCountsAggregator(LawAggregator[ShuffledCountsLaw]):
    def __init__(self, law: ShuffledCountsLaw) -> None:
        super().__init__(law)
        self._counts: dict[int, int] = {}
        self._followed = _Followed()
        self._participation: Participation | None = None
        self._resumed = 0

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.last_epoch, words, np.uint8)
        if words.any():
            raise ValueError(f"message at epoch {epoch} is {words.max()}; expected 0")

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        self._add(epoch, len(words) if counts is None else int(counts.sum(dtype=np.int64)))

    def _merge(self, other: Self) -> None:
        for epoch, count in other._counts.items():
            self._add(epoch, count)

    def to_bytes(self) -> bytes:
        return np.array(sorted(self._counts.items()), _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ShuffledCountsLaw, data: bytes) -> Self:
        aggregator = cls(law)
        for epoch, entry in entries_by_epoch(data, _ENTRY, law.last_epoch, "counts"):
            count = int(entry["count"])
            if not 1 <= count <= _COUNT_CAP:
                raise ValueError("a count at an epoch is out of range; expected 1 to 2^53")
            aggregator._counts[epoch] = count
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        """Estimate the number of devices with value 1; return None before the first release.

        A suppressed epoch repeats the previous estimate, flagged `GAP`. If absence does not depend
        on values, the interval covers the worst case, in which the same devices are always absent.

        The entries of one `participation` object up to the epoch must not change between calls.
        """
        if self._participation is not participation or self._followed.epoch > epoch:
            self._restart()
            self._participation = participation
        while self._followed.epoch < epoch:
            self._followed = self._next(participation)
        found = self._followed
        if not found.known:
            return None
        deviation = math.hypot(math.sqrt(found.variance), found.absence_error)
        return Estimate.around(
            found.value,
            deviation,
            NORMAL_95 * deviation,
            reports=self._counts.get(epoch, 0),
            population=int(participation.population[epoch]),
            flags=() if found.released else (GAP,),
        )

    def state_after(self, epoch: int, participation: Participation) -> dict[str, Any]:
        self.estimate(epoch, participation)
        return {"followed": list(astuple(self._followed)), "count": self._counts.get(epoch, 0)}

    def resume(self, state: Mapping[str, Any], participation: Participation) -> None:
        epoch, *numbers, known, released = state["followed"]
        count = state["count"]
        finite = all(type(each) is float and math.isfinite(each) for each in numbers)
        counted = all(type(each) is int and each >= 0 for each in (epoch, count))
        if not (finite and counted and len(numbers) == 3):
            raise ValueError("state is invalid; expected finite numbers and nonnegative counts")
        self._followed = _Followed(*(epoch, *numbers, bool(known), bool(released)))
        self._counts = {epoch: count} if count else {}
        self._participation, self._resumed = participation, epoch

    def _next(self, participation: Participation) -> _Followed:
        before, boost, noise = self._followed, self.law.boost, self.law.noise
        epoch = before.epoch + 1
        contributors = int(participation.contributors[epoch])
        if contributors < noise.minimum:
            return _Followed(
                epoch, before.value, before.variance, before.absence_error, before.known
            )
        population = int(participation.population[epoch])
        scale = population / contributors
        senders = participation.senders(epoch)
        mean, spread = noise.moments(senders)
        always = boost * senders + mean
        received = scale * (self._counts.get(epoch, 0) - always)
        value = (boost * before.value + received) / (boost + 1)
        share = min(max(value / population, 0.0), 1.0)
        absent = max(0, population - contributors) / max(1, population - 1)
        unseen = population * math.sqrt(share * (1 - share) * absent / contributors)
        variance = boost**2 * before.variance + scale**2 * spread
        return _Followed(
            epoch,
            value,
            variance / (boost + 1) ** 2,
            (boost * before.absence_error + unseen) / (boost + 1),
            known=True,
            released=True,
        )

    def _add(self, epoch: int, count: int) -> None:
        if count:
            self._counts[epoch] = self._counts.get(epoch, 0) + count
            if epoch <= self._followed.epoch:
                self._restart()

    def _restart(self) -> None:
        assert not self._resumed, "cannot restart: no messages before the resumed epoch"
        self._followed = _Followed()


def predicted_deviations(
    law: ShuffledCountsLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """Predict standard errors, in users, if all devices report; shape (last_epoch,)."""
    kept = (law.boost / (law.boost + 1)) ** 2
    averaged = (1 - kept ** np.arange(1, last_epoch + 1)) / (2 * law.boost + 1)
    deviations: NDArray[np.float64] = np.sqrt(law.noise.moments(users)[1] * averaged)
    return deviations
