"""Counts followed through time: each epoch's comes in with what devices add for their changes.

What comes in at an epoch is the count plus F, what devices add: a boost for every change, which
decays. That is undone epoch by epoch, in constant time and memory. What later epochs say is of
themselves alone, so that there is nothing to smooth without a bias.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from dpstream.aggregators.change_use import ChangeUse
from dpstream.aggregators.estimate import CHANGES_USED, GAP, NORMAL_95, Attendance, Estimate
from dpstream.aggregators.law_aggregator import LawAggregator

if TYPE_CHECKING:
    from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

Users: TypeAlias = Any
"""Numbers of users: a float, or float64 of any shape for several counts with the same errors."""


class Followed(NamedTuple):
    """The estimate of an epoch, and how its error goes on; of one count, or of several at once.

    Attributes:
        epoch: 0 before the first.
        value: in users.
        boosts: F, what the devices are estimated to add for the changes they follow, in users.
        variance: of the value's noise.
        covariance: of the noise of the value and of `boosts`.
        boosts_variance: of the noise of `boosts`.
        silence: standard deviation of the value that is due to silent devices: what it is if they
            are always the same ones, and no less than what is left of that of earlier epochs.
        known: whether any epoch had reports so far.
        released: whether this one had.
    """

    epoch: int = 0
    value: Users = 0.0
    boosts: Users = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    boosts_variance: float = 0.0
    silence: float = 0.0
    known: bool = False
    released: bool = False

    @property
    def deviation(self) -> float:
        """Standard deviation of the value."""
        return math.hypot(math.sqrt(self.variance), self.silence)

    def estimate(
        self, reports: int, population: int, *, changes_used: bool = False
    ) -> Estimate | None:
        """What is published of the epoch; None before any had reports."""
        if not self.known:
            return None
        deviation = self.deviation
        return Estimate.around(
            self.value,
            deviation,
            NORMAL_95 * deviation,
            reports=reports,
            population=population,
            flags=(*(() if self.released else (GAP,)), *((CHANGES_USED,) if changes_used else ())),
        )

    def without_reports(self, decay: float) -> Followed:
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

    def next_value(self, boost: float, decay: float, received: Users) -> Users:
        """The value of the next epoch.

        Args:
            boost: a.
            decay: b.
            received: Y, the count plus what devices add to it.
        """
        return (received - decay * self.boosts + boost * self.value) / (1 + boost)

    def with_reports(
        self, boost: float, decay: float, value: Users, variance: float, unseen: float
    ) -> Followed:
        """The next epoch.

        Args:
            boost: a.
            decay: b.
            value: as `next_value` says.
            variance: of the noise of what was received.
            unseen: as `unseen_deviation` says, of the value.
        """
        step = _step(boost, decay)
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
            max(unseen, step.own * (boost * self.silence + unseen)),
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


class Received(NamedTuple):
    """What has come in at an epoch.

    Attributes:
        total: the count of all devices, plus what they add to it for their changes, in users.
        variance: of its noise.
        present: whose reports there are, at least one.
        population: devices enrolled.
    """

    total: float
    variance: float
    present: int
    population: int

    def unseen(self, value: float) -> float:
        """As `unseen_deviation`, if the value of so many of all devices is about 1."""
        return unseen_deviation(value, self.population, self.present)


class BoostedLaw(Protocol):
    """Of devices that add to their value a boost for each change, which decays."""

    @property
    def last_epoch(self) -> int:
        """Epochs of the horizon."""
        ...

    @property
    def changes(self) -> int:
        """The changes of a device that are boosted, k."""
        ...

    @property
    def boost(self) -> float:
        """What is added at once, a."""
        ...

    @property
    def decay(self) -> float:
        """What is left of it an epoch later, b."""
        ...


LawT = TypeVar("LawT", bound=BoostedLaw)


class FollowedCounts(LawAggregator[LawT], Generic[LawT]):
    """How many devices have the value 1, by epoch.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._followed = Followed()
        self._use = ChangeUse()
        self._attendance: Attendance | None = None
        # Of an epoch whose reports themselves are not held, since it was gone on from.
        self._resumed: tuple[int, int] | None = None

    @abstractmethod
    def reports(self, epoch: int, attendance: Attendance) -> int:
        """How many devices' reports of an epoch are known."""

    @abstractmethod
    def _received(self, epoch: int, attendance: Attendance) -> Received | None:
        """What has come in at an epoch; None if nothing."""

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate | None:
        """How many devices have the value 1 at an epoch; None before anything has come in.

        Those who report speak for the silent. An epoch without reports has the estimate of the one
        before, flagged `GAP`. The interval holds what silent devices may change at most, if silence
        does not depend on values: as much as if it were always the same devices that are silent.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one; those of one and the same object
                must not change afterwards.
        """
        found = self.followed(epoch, attendance)
        reports = self._reports(epoch, attendance) if found.released else 0
        return found.estimate(
            reports, int(attendance.population[epoch]), changes_used=self._changes_used
        )

    def followed(self, epoch: int, attendance: Attendance) -> Followed:
        """The estimate of an epoch, and how its error goes on; see `estimate`."""
        if self._attendance is not attendance or self._followed.epoch > epoch:
            self._begin_anew()
            self._attendance = attendance
        while self._followed.epoch < epoch:
            before = self._followed
            received = self._received(before.epoch + 1, attendance)
            self._followed = self._next(before, received)
            if received is not None:
                self._use = self._used(self._use, self._followed, received)
        return self._followed

    def state_after(self, epoch: int, attendance: Attendance) -> dict[str, Any]:
        """What the estimates of later epochs need of the reports up to an epoch: JSON values."""
        found = self.followed(epoch, attendance)
        return {
            "followed": list(found),
            "use": list(self._use),
            "reports": self._reports(epoch, attendance),
        }

    def resume(self, state: Mapping[str, Any], attendance: Attendance) -> None:
        """Have `state_after` in place of the reports up to its epoch; called of an empty state.

        Raises:
            ValueError: it is no such state.
        """
        epoch, *numbers, known, released = state["followed"]
        use, reports = ChangeUse(*state["use"]), state["reports"]
        floats = *numbers, use.settled, use.moved, use.squares, use.spread, use.changes
        finite = all(type(each) is float and math.isfinite(each) for each in floats)
        counted = all(type(each) is int and each >= 0 for each in (epoch, reports, use.fewest))
        if not (finite and counted and len(numbers) == len(Followed()) - 3):
            raise ValueError("these are no numbers that were followed")
        self._followed = Followed(*(epoch, *numbers, bool(known), bool(released)))
        self._use = use
        self._attendance, self._resumed = attendance, (epoch, reports)

    def _reports(self, epoch: int, attendance: Attendance) -> int:
        resumed = self._resumed
        if resumed is not None and resumed[0] == epoch:
            return resumed[1]
        return self.reports(epoch, attendance)

    def smoothed(self, last_epoch: int, attendance: Attendance) -> SmoothedEstimates:
        """The estimates of every epoch: those published of it, since later reports add nothing.

        Biased ones beside them take the count to walk at random:
        `dpstream.aggregators.random_walk`.

        Args:
            last_epoch: 1 to the last one of the horizon.
            attendance: head counts of the epochs up to this one.
        """
        from dpstream.aggregators.random_walk import random_walk
        from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

        found = Followed()
        values, deviations = np.zeros((2, last_epoch))
        counts, variances = np.zeros(last_epoch), np.full(last_epoch, np.inf)
        gaps = np.ones(last_epoch, np.bool_)
        population = attendance.population[1 : last_epoch + 1]
        for at in range(last_epoch):
            received = self._received(at + 1, attendance)
            found = self._next(found, received)
            if received is not None:
                counts[at] = received.total
                variances[at] = received.variance + received.unseen(found.value) ** 2
            values[at], gaps[at] = found.value, not found.released
            # Before anything has come in, anything up to all of them.
            deviations[at] = found.deviation if found.known else population[at]
        largest = float(population.max(initial=1)) ** 2
        shrunk = random_walk(counts, variances, largest, boost=self.law.boost, decay=self.law.decay)
        return SmoothedEstimates(
            values=values[:, None],
            standard_deviations=deviations,
            half_widths=NORMAL_95 * deviations,
            gaps=gaps,
            population=population,
            online_shrunk=shrunk.online[:, None],
            shrunk=shrunk.offline[:, None],
        )

    def _next(self, before: Followed, received: Received | None) -> Followed:
        boost, decay = self.law.boost, self.law.decay
        if received is None:
            return before.without_reports(decay)
        value = before.next_value(boost, decay, received.total)
        return before.with_reports(boost, decay, value, received.variance, received.unseen(value))

    def _used(self, use: ChangeUse, found: Followed, received: Received) -> ChangeUse:
        """Take in an epoch with reports, for the changes that people have made at least."""
        return use.after_count(
            found.value, found.deviation, received.population, self.law.last_epoch
        )

    @property
    def _changes_used(self) -> bool:
        """True if people have made half of the changes or more, and the horizon allows more."""
        law = self.law
        return law.changes < law.last_epoch and 2 * self._use.changes >= law.changes

    def _forget(self, epoch: int) -> None:
        """Begin anew, if the reports of an epoch that was followed have changed."""
        if epoch <= self._followed.epoch:
            self._begin_anew()

    def _begin_anew(self) -> None:
        assert self._resumed is None, "resumed with what is gone"
        self._followed, self._use = Followed(), ChangeUse()


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
