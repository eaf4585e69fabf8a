"""value_stream, server side: sums of letters, and how many devices have the value 1.

The sum of an epoch's letters, over the gain, estimates the count plus what the devices add for the
changes they follow. That is undone epoch by epoch, in constant time and memory. There is nothing to
smooth: the letters of an epoch are all that tells of its own count and of nothing else, so later
ones add nothing to its best linear unbiased estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.estimate import GAP, NORMAL_95, Estimate
from aggregators.report_words import check_form
from randomizers.value_stream import ValueStreamLaw
from randomizers.value_stream.lattice import FIRST, LAST, STEP, ZERO

_ENTRY = np.dtype([("epoch", "<u8"), ("reports", "<i8"), ("letters", "<i8"), ("squares", "<i8")])
_COUNT_CAP = 2**40
_MOST = LAST - ZERO

UsersT = TypeVar("UsersT", float, NDArray[np.float64])
"""Numbers of users: one, or an array of those of several counts with the same errors."""

_NOBODY: Any = 0.0


@dataclass(frozen=True, slots=True)
class LetterSums:
    """What is kept of an epoch's letters.

    Attributes:
        reports: how many there are.
        letters: their sum, in steps of 1/8.
        squares: the sum of their squares, in steps of 1/64.
    """

    reports: int = 0
    letters: int = 0
    squares: int = 0

    @classmethod
    def of(cls, letters: NDArray[np.int64], counts: NDArray[np.int64]) -> LetterSums:
        """Of letters, in steps from 0, each as often as counted; shape (rows,) each."""
        return cls(int(counts.sum()), int(letters @ counts), int(np.square(letters) @ counts))

    def __add__(self, other: LetterSums) -> LetterSums:
        return LetterSums(
            self.reports + other.reports,
            self.letters + other.letters,
            self.squares + other.squares,
        )

    def possible(self) -> bool:
        """Whether there can be letters with these sums."""
        most = self.reports * _MOST
        return (
            1 <= self.reports <= _COUNT_CAP
            and abs(self.letters) <= most
            and self.letters**2 <= self.reports * self.squares
            and self.squares <= most * _MOST
            and (self.letters - self.squares) % 2 == 0
        )


_NO_LETTERS = LetterSums()


@dataclass(frozen=True, slots=True)
class Followed(Generic[UsersT]):
    """The estimate of an epoch, and how its error goes on; of one count, or of several at once.

    Attributes:
        epoch: 0 before the first.
        value: in users.
        boosts: F, what the devices are estimated to add for the changes they follow, in users.
        variance: of the value's noise.
        covariance: of the noise of the value and of `boosts`.
        boosts_variance: of the noise of `boosts`.
        silence: standard deviation of the value that is due to silent devices.
        known: whether any epoch had reports so far.
        released: whether this one had.
    """

    epoch: int = 0
    value: UsersT = _NOBODY
    boosts: UsersT = _NOBODY
    variance: float = 0.0
    covariance: float = 0.0
    boosts_variance: float = 0.0
    silence: float = 0.0
    known: bool = False
    released: bool = False

    def estimate(self: Followed[float], reports: int, population: int) -> Estimate | None:
        """What is published of the epoch; None before any had reports."""
        if not self.known:
            return None
        deviation = math.hypot(math.sqrt(self.variance), self.silence)
        return Estimate.around(
            self.value,
            deviation,
            NORMAL_95 * deviation,
            reports=reports,
            population=population,
            flags=() if self.released else (GAP,),
        )

    def without_reports(self, decay: float) -> Followed[UsersT]:
        """The next epoch, of which nothing came in: the value is kept."""
        return Followed(
            self.epoch + 1,
            self.value,
            decay * self.boosts,
            self.variance,
            decay * self.covariance,
            decay * decay * self.boosts_variance,
            self.silence,
            self.known,
        )

    def with_reports(
        self, boost: float, decay: float, received: UsersT, variance: float, unseen: float
    ) -> Followed[UsersT]:
        """The next epoch.

        Args:
            boost: a.
            decay: b.
            received: Y, the count plus what devices add to it.
            variance: of its noise.
            unseen: as `unseen_deviation` says.
        """
        step = _step(boost, decay)
        value = step.own * (received - decay * self.boosts + boost * self.value)
        before, both, of_boosts = self.variance, self.covariance, self.boosts_variance
        into_value, into_both, into_boosts = step.errors
        return Followed(
            self.epoch + 1,
            value,
            decay * self.boosts + boost * (value - self.value),
            into_value[0] * before
            + into_value[1] * both
            + into_value[2] * of_boosts
            + into_value[3] * variance,
            into_both[0] * before
            + into_both[1] * both
            + into_both[2] * of_boosts
            + into_both[3] * variance,
            into_boosts[0] * before
            + into_boosts[1] * both
            + into_boosts[2] * of_boosts
            + into_boosts[3] * variance,
            step.own * (boost * self.silence + unseen),
            known=True,
            released=True,
        )


class _Step(NamedTuple):
    """What an epoch does to the estimate before it, the same at every epoch.

    Attributes:
        own: the weight of what comes in.
        errors: of the variance of the value, the covariance and the variance of `boosts`: how much
            of each of the three there was before goes into it, and how much of the noise of what
            comes in.
    """

    own: float
    errors: tuple[tuple[float, float, float, float], ...]


@lru_cache
def _step(boost: float, decay: float) -> _Step:
    own = 1 / (1 + boost)
    # Errors: (value, boosts) <- A (value, boosts) + h noise.
    from_value, from_boosts = boost * own, -decay * own
    boosts_from_value = boost * from_value - boost
    boosts_from_boosts = boost * from_boosts + decay
    boosts_own = boost * own
    return _Step(
        own,
        (
            (from_value**2, 2 * from_value * from_boosts, from_boosts**2, own**2),
            (
                from_value * boosts_from_value,
                from_value * boosts_from_boosts + from_boosts * boosts_from_value,
                from_boosts * boosts_from_boosts,
                own * boosts_own,
            ),
            (
                boosts_from_value**2,
                2 * boosts_from_value * boosts_from_boosts,
                boosts_from_boosts**2,
                boosts_own**2,
            ),
        ),
    )


class ValueStreamAggregator:
    """Sums of letters; equal whatever the order, and however they were split and merged.

    >>> from randomizers.value_stream import ValueStreamParameters
    >>> from randomizers.value_stream.calibration import calibrate
    >>> law = calibrate(ValueStreamParameters(epsilon=1, changes=2), last_epoch=170)
    >>> aggregator = ValueStreamAggregator(law)
    >>> aggregator.add(1, np.array([[80], [88], [76]], np.uint8), None)
    >>> aggregator.sums(1)
    LetterSums(reports=3, letters=4, squares=80)

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ValueStreamLaw) -> None:
        self.law = law
        self._sums: dict[int, LetterSums] = {}
        self._followed: Followed[float] = Followed()
        self._attendance: Attendance | None = None

    def check_words(self, epoch: int, words: NDArray[np.uint8]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint8 of shape
                (reports, 1), or a word is no letter.
        """
        check_form(epoch, self.law.last_epoch, words, np.uint8)
        if words.size and not FIRST <= int(words.min()) <= int(words.max()) <= LAST:
            wrong = words[(words < FIRST) | (words > LAST)][0]
            raise ValueError(f"word {wrong} at epoch {epoch}, must be from {FIRST} to {LAST}")

    def add(
        self, epoch: int, words: NDArray[np.uint8], counts: NDArray[np.unsignedinteger] | None
    ) -> None:
        """Count reports.

        Args:
            epoch: 1 to the last one.
            words: uint8, shape (rows, 1), as `ValueStream.report` returns.
            counts: unsigned, shape (rows,), how often each word was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        if counts is None:
            table = np.bincount(words[:, 0], minlength=LAST + 1)
        else:
            table = np.zeros(LAST + 1, np.int64)
            np.add.at(table, words[:, 0], counts.astype(np.int64))
        self._add(epoch, LetterSums.of(np.arange(-ZERO, LAST + 1 - ZERO), table))

    def sums(self, epoch: int) -> LetterSums:
        """Of the letters received of an epoch."""
        return self._sums.get(epoch, _NO_LETTERS)

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        for epoch, sums in other._sums.items():
            self._add(epoch, sums)

    def to_bytes(self) -> bytes:
        """For every epoch with reports: epoch (u8), then `LetterSums` (i8 each); ascending."""
        entries = [
            (epoch, sums.reports, sums.letters, sums.squares)
            for epoch, sums in sorted(self._sums.items())
        ]
        return np.array(entries, _ENTRY).tobytes()

    @classmethod
    def from_bytes(cls, law: ValueStreamLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no sums of letters of this horizon.
        """
        if len(data) % _ENTRY.itemsize:
            raise ValueError(f"sums of {len(data)} bytes, an epoch takes {_ENTRY.itemsize}")
        aggregator, before = cls(law), 0
        for epoch, *numbers in np.frombuffer(data, _ENTRY).tolist():
            if not before < epoch <= law.last_epoch:
                raise ValueError(
                    f"sums of epoch {epoch} after {before}, the horizon has {law.last_epoch}"
                )
            sums = LetterSums(*numbers)
            if not sums.possible():
                raise ValueError(f"no letters of epoch {epoch} have the sums {numbers}")
            aggregator._sums[epoch] = sums
            before = epoch
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate | None:
        """How many devices have the value 1 at an epoch; None before any has reported.

        Those who report speak for the silent. An epoch without reports has the estimate of the one
        before, flagged `GAP`. The interval holds what silent devices may change at most, if silence
        does not depend on values: as much as if it were always the same devices that are silent.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one; those of one and the same object
                must not change afterwards.
        """
        reports, population = self.sums(epoch).reports, int(attendance.population[epoch])
        return self.followed(epoch, attendance).estimate(reports, population)

    def followed(self, epoch: int, attendance: Attendance) -> Followed[float]:
        """The estimate of an epoch, and how its error goes on; see `estimate`."""
        if self._attendance is not attendance or self._followed.epoch > epoch:
            self._followed, self._attendance = Followed(), attendance
        while self._followed.epoch < epoch:
            self._followed = self._next(attendance)
        return self._followed

    def _next(self, attendance: Attendance) -> Followed[float]:
        before, law = self._followed, self.law
        epoch = before.epoch + 1
        sums = self.sums(epoch)
        if not sums.reports:
            return before.without_reports(law.decay)
        population, reports = int(attendance.population[epoch]), sums.reports
        scale = population / reports
        received = scale * (_spread(law) * STEP * sums.letters + reports / 2)
        variance, unseen = received_errors(law, reports, population, before.value)
        return before.with_reports(law.boost, law.decay, received, variance, unseen)

    def _add(self, epoch: int, sums: LetterSums) -> None:
        if sums.reports:
            self._sums[epoch] = self.sums(epoch) + sums
            if epoch <= self._followed.epoch:
                self._followed = Followed()


def received_errors(
    law: ValueStreamLaw, reports: int, population: int, value: float
) -> tuple[float, float]:
    """How far what comes in at an epoch is off, the count plus what devices add to it.

    Args:
        law: the constants of the job.
        reports: of the epoch, at least 1.
        population: devices enrolled.
        value: of how many the value is about 1.

    Returns:
        the variance of the noise, and the standard deviation that is due to silent devices: of the
        count of all, given that of those present.
    """
    variance = (population / reports) ** 2 * reports * _spread(law) ** 2
    return variance, unseen_deviation(value, population, reports)


def unseen_deviation(value: float, population: int, present: int) -> float:
    """Standard deviation of the count of all devices, given that of those present.

    Args:
        value: of how many of all the value is about 1.
        population: how many devices there are.
        present: how many of them, at least 1.
    """
    share = min(max(value / population, 0.0), 1.0)
    silent = max(0, population - present) / max(1, population - 1)
    return population * math.sqrt(share * (1 - share) * silent / present)


def _spread(law: ValueStreamLaw) -> float:
    """What a letter of variance 1 is worth: its standard deviation, in users."""
    return math.sqrt(law.clock) / law.gain
