"""Shuffled counts, server side: the number of messages of every epoch, followed through time.

An epoch's messages, less those that are always there, scaled to all devices, estimate the count
plus r times its change. What is published follows them: with r parts of the estimate before and one
part of what has come in, divided by r + 1, it is unbiased as long as all changes are boosted, and
noise is averaged over about 2r + 1 epochs. A change that is not boosted, or falls on an epoch that
was withheld, shows by and by: at most the share (r / (r + 1))^m of it is missing m epochs later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Attendance, Estimate
from dpstream.aggregators.law_aggregator import LawAggregator, check_form
from dpstream.randomizers.shuffled_counts import ShuffledCountsLaw

_COUNT_CAP = 2**53
_ENTRY = np.dtype([("epoch", "<u8"), ("count", "<i8")])


@dataclass(frozen=True, slots=True)
class _Followed:
    """The estimate of an epoch.

    Attributes:
        epoch: 0 before the first.
        value: in users.
        variance: of the noise.
        silence: standard deviation that is due to silent devices.
        known: whether any epoch was released so far.
        released: whether this one was.
    """

    epoch: int = 0
    value: float = 0.0
    variance: float = 0.0
    silence: float = 0.0
    known: bool = False
    released: bool = False


class ShuffledCountsAggregator(LawAggregator[ShuffledCountsLaw]):
    """Counts of messages; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledCountsLaw) -> None:
        super().__init__(law)
        self._counts: dict[int, int] = {}
        self._followed = _Followed()
        self._attendance: Attendance | None = None
        self._resumed = 0

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint8 of shape
                (reports, 1), or a word is not 0.
        """
        check_form(epoch, self.law.last_epoch, words, np.uint8)
        if words.any():
            raise ValueError(f"word {words.max()} at epoch {epoch}, must be 0")

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
        """For every epoch with messages: epoch (u8) and how many (i8); ascending."""
        return np.array(sorted(self._counts.items()), _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ShuffledCountsLaw, data: bytes) -> Self:
        """Read `to_bytes`; `ValueError` if the bytes are no counts of this horizon."""
        if len(data) % _ENTRY.itemsize:
            raise ValueError(f"counts of {len(data)} bytes, an epoch takes {_ENTRY.itemsize}")
        entries = np.frombuffer(data, _ENTRY)
        epochs, counts = entries["epoch"], entries["count"]
        if (epochs[1:] <= epochs[:-1]).any():
            raise ValueError("the epochs of counts do not strictly increase")
        if len(epochs) and not 1 <= int(epochs[0]) <= int(epochs[-1]) <= law.last_epoch:
            raise ValueError(
                f"counts of epochs {epochs[0]} to {epochs[-1]}, the horizon has {law.last_epoch}"
            )
        if (counts < 1).any() or (counts > _COUNT_CAP).any():
            raise ValueError("the count of an epoch must be from 1 to 2^53")
        aggregator = cls(law)
        aggregator._counts = dict(zip(epochs.tolist(), counts.tolist(), strict=True))
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate | None:
        """How many devices have the value 1 at an epoch; None before a window was released.

        Those who are present speak for the silent. An epoch whose window was withheld, because
        there were fewer contributors than the minimum, has the estimate of the one before, flagged
        `GAP`. The interval holds what silent devices may change at most, if silence does not depend
        on values: as much as if it were always the same devices that are silent.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one; those of one and the same object
                must not change afterwards.
        """
        if self._attendance is not attendance or self._followed.epoch > epoch:
            self._begin_anew()
            self._attendance = attendance
        while self._followed.epoch < epoch:
            self._followed = self._next(attendance)
        found = self._followed
        if not found.known:
            return None
        deviation = math.hypot(math.sqrt(found.variance), found.silence)
        return Estimate.around(
            found.value,
            deviation,
            NORMAL_95 * deviation,
            reports=self._counts.get(epoch, 0),
            population=int(attendance.population[epoch]),
            flags=() if found.released else (GAP,),
        )

    def state_after(self, epoch: int, attendance: Attendance) -> dict[str, Any]:
        """What the estimates of later epochs need of the messages up to an epoch: JSON values."""
        self.estimate(epoch, attendance)
        return {"followed": list(astuple(self._followed)), "count": self._counts.get(epoch, 0)}

    def resume(self, state: Mapping[str, Any], attendance: Attendance) -> None:
        """Have `state_after` in place of the messages up to its epoch; called of an empty state.

        Raises:
            ValueError: it is no such state.
        """
        epoch, *numbers, known, released = state["followed"]
        count = state["count"]
        finite = all(type(each) is float and math.isfinite(each) for each in numbers)
        counted = all(type(each) is int and each >= 0 for each in (epoch, count))
        if not (finite and counted and len(numbers) == 3):
            raise ValueError("these are no numbers that were followed")
        self._followed = _Followed(*(epoch, *numbers, bool(known), bool(released)))
        self._counts = {epoch: count} if count else {}
        self._attendance, self._resumed = attendance, epoch

    def _next(self, attendance: Attendance) -> _Followed:
        before, boost, noise = self._followed, self.law.boost, self.law.noise
        epoch = before.epoch + 1
        contributors = int(attendance.contributors[epoch])
        if contributors < noise.minimum:
            return _Followed(epoch, before.value, before.variance, before.silence, before.known)
        population = int(attendance.population[epoch])
        scale = population / contributors
        senders = attendance.senders(epoch)
        mean, spread = noise.moments(senders)
        always = boost * senders + mean
        received = scale * (self._counts.get(epoch, 0) - always)
        value = (boost * before.value + received) / (boost + 1)
        share = min(max(value / population, 0.0), 1.0)
        silent = max(0, population - contributors) / max(1, population - 1)
        unseen = population * math.sqrt(share * (1 - share) * silent / contributors)
        variance = boost**2 * before.variance + scale**2 * spread
        return _Followed(
            epoch,
            value,
            variance / (boost + 1) ** 2,
            (boost * before.silence + unseen) / (boost + 1),
            known=True,
            released=True,
        )

    def _add(self, epoch: int, count: int) -> None:
        if count:
            self._counts[epoch] = self._counts.get(epoch, 0) + count
            if epoch <= self._followed.epoch:
                self._begin_anew()

    def _begin_anew(self) -> None:
        assert not self._resumed, "resumed with what is gone"
        self._followed = _Followed()


def predicted_deviations(
    law: ShuffledCountsLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """The standard deviations to expect when everybody reports: in users, shape (last_epoch,)."""
    kept = (law.boost / (law.boost + 1)) ** 2
    averaged = (1 - kept ** np.arange(1, last_epoch + 1)) / (2 * law.boost + 1)
    deviations: NDArray[np.float64] = np.sqrt(law.noise.moments(users)[1] * averaged)
    return deviations
