"""Track counts over time: recover each count by removing what devices add for their changes.

For every change, a device adds a boost to its reports, which decays in later epochs. So an epoch's
reports estimate the count plus F, the sum of all boosts. F is removed epoch by epoch, in constant
time and memory. Later reports carry no information about earlier counts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from dpstream.aggregators.change_use import ChangeUse
from dpstream.aggregators.estimate import CHANGES_USED, GAP, NORMAL_95, Estimate, Participation
from dpstream.aggregators.law_aggregator import LawAggregator

if TYPE_CHECKING:
    from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

Users: TypeAlias = Any
"""Number of users: a float, or float64 of any shape for several counts with the same errors."""


class Followed(NamedTuple):
    """An epoch's estimate of one count or several, with the propagation of its error.

    Attributes:
        epoch: Epoch number; 0 before the first.
        value: Estimated count, in users.
        boosts: F, the estimated sum of boosts for the changes that devices track, in users.
        variance: Variance of the noise in `value`.
        covariance: Covariance of the noise in `value` and in `boosts`.
        boosts_variance: Variance of the noise in `boosts`.
        absence_error: Standard deviation of `value` due to absent devices, as if the same devices
            were always absent.
        known: True if any epoch so far had reports.
        released: True if this epoch had reports.
    """

    epoch: int = 0
    value: Users = 0.0
    boosts: Users = 0.0
    variance: float = 0.0
    covariance: float = 0.0
    boosts_variance: float = 0.0
    absence_error: float = 0.0
    known: bool = False
    released: bool = False

    @property
    def deviation(self) -> float:
        return math.hypot(math.sqrt(self.variance), self.absence_error)

    def estimate(
        self, reports: int, population: int, *, changes_used: bool = False
    ) -> Estimate | None:
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
        """Return the state at the next epoch if it has no reports: the value stays the same."""
        return Followed(
            self.epoch + 1,
            self.value,
            decay * self.boosts,
            self.variance,
            decay * self.covariance,
            decay * decay * self.boosts_variance,
            self.absence_error,
            self.known,
        )

    def next_value(self, boost: float, decay: float, received: Users) -> Users:
        """Return the next epoch's value from the received count, which includes F."""
        return (received - decay * self.boosts + boost * self.value) / (1 + boost)

    def with_reports(
        self, boost: float, decay: float, value: Users, variance: float, unseen: float
    ) -> Followed:
        """Return the state at the next epoch, with `value` from `next_value`.

        `variance` is that of the received noise, `unseen` the `unseen_deviation` of `value`.
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
            max(unseen, step.own * (boost * self.absence_error + unseen)),
            known=True,
            released=True,
        )


class _Step(NamedTuple):
    """Weights with which every epoch updates the previous estimate.

    Attributes:
        own: Weight of the received count.
        errors: Rows for `variance`, `covariance` and `boosts_variance`. Each row has the weights of
            the three previous values, then that of the received noise variance.
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
    """Sum of an epoch's reports.

    `total` is the number of devices with value 1, plus the boosts of all devices, with the noise
    `variance`. At least one device is `present`.
    """

    total: float
    variance: float
    present: int
    population: int

    def unseen(self, value: float) -> float:
        return unseen_deviation(value, self.population, self.present)


class BoostedLaw(Protocol):
    @property
    def last_epoch(self) -> int: ...

    @property
    def max_changes(self) -> int:
        """Maximum number of boosted changes per device, k."""

    @property
    def boost(self) -> float:
        """Amount added at the epoch of a change, a."""

    @property
    def decay(self) -> float:
        """Fraction of the boost left one epoch later, b."""


LawT = TypeVar("LawT", bound=BoostedLaw)


class FollowedCounts(LawAggregator[LawT], Generic[LawT]):
    def __init__(self, law: LawT) -> None:
        super().__init__(law)
        self._followed = Followed()
        self._use = ChangeUse()
        self._participation: Participation | None = None
        # Epoch and number of reports restored by `resume`; the reports themselves are not stored.
        self._resumed: tuple[int, int] | None = None

    @abstractmethod
    def reports(self, epoch: int, participation: Participation) -> int:
        """Return the number of devices whose reports for an epoch are known."""

    @abstractmethod
    def _received(self, epoch: int, participation: Participation) -> Received | None:
        """Return the sum of an epoch's reports, or None if no reports arrived."""

    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        """Estimate the number of devices with value 1; return None before the first reports.

        Absent devices are assumed to be like those that report. An epoch without reports repeats
        the previous estimate, flagged `GAP`. If absence does not depend on values, the interval
        covers the worst case, in which the same devices are always absent.

        The entries of one `participation` object up to the epoch must not change between calls.
        """
        found = self.followed(epoch, participation)
        reports = self._reports(epoch, participation) if found.released else 0
        return found.estimate(
            reports, int(participation.population[epoch]), changes_used=self._changes_used
        )

    def followed(self, epoch: int, participation: Participation) -> Followed:
        if self._participation is not participation or self._followed.epoch > epoch:
            self._restart()
            self._participation = participation
        while self._followed.epoch < epoch:
            before = self._followed
            received = self._received(before.epoch + 1, participation)
            self._followed = self._next(before, received)
            if received is not None:
                self._use = self._used(self._use, self._followed, received)
        return self._followed

    def state_after(self, epoch: int, participation: Participation) -> dict[str, Any]:
        found = self.followed(epoch, participation)
        return {
            "followed": list(found),
            "use": list(self._use),
            "reports": self._reports(epoch, participation),
        }

    def resume(self, state: Mapping[str, Any], participation: Participation) -> None:
        epoch, *numbers, known, released = state["followed"]
        use, reports = ChangeUse(*state["use"]), state["reports"]
        floats = *numbers, use.settled, use.moved, use.squares, use.spread, use.changes
        finite = all(type(each) is float and math.isfinite(each) for each in floats)
        counted = all(type(each) is int and each >= 0 for each in (epoch, reports, use.fewest))
        if not (finite and counted and len(numbers) == len(Followed()) - 3):
            raise ValueError("state is invalid; expected finite numbers and nonnegative counts")
        self._followed = Followed(*(epoch, *numbers, bool(known), bool(released)))
        self._use = use
        self._participation, self._resumed = participation, (epoch, reports)

    def _reports(self, epoch: int, participation: Participation) -> int:
        resumed = self._resumed
        if resumed is not None and resumed[0] == epoch:
            return resumed[1]
        return self.reports(epoch, participation)

    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        """Return every epoch's published estimate, which later reports do not improve."""
        from dpstream.aggregators.random_walk import random_walk
        from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

        found = Followed()
        values, deviations = np.zeros((2, last_epoch))
        counts, variances = np.zeros(last_epoch), np.full(last_epoch, np.inf)
        gaps = np.ones(last_epoch, np.bool_)
        population = participation.population[1 : last_epoch + 1]
        for at in range(last_epoch):
            received = self._received(at + 1, participation)
            found = self._next(found, received)
            if received is not None:
                counts[at] = received.total
                variances[at] = received.variance + received.unseen(found.value) ** 2
            values[at], gaps[at] = found.value, not found.released
            # Before the first reports, any count up to the population is possible.
            deviations[at] = found.deviation if found.known else population[at]
        largest = float(population.max(initial=1)) ** 2
        shrunk = random_walk(counts, variances, largest, boost=self.law.boost, decay=self.law.decay)
        return SmoothedEstimates(
            values=values[:, None],
            standard_errors=deviations,
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
        return use.after_count(
            found.value, found.deviation, received.population, self.law.last_epoch
        )

    @property
    def _changes_used(self) -> bool:
        """True if users made at least half of the allowed changes and can make more later."""
        law = self.law
        return law.max_changes < law.last_epoch and 2 * self._use.changes >= law.max_changes

    def _drop(self, epoch: int) -> None:
        """Restart from scratch if the reports of a tracked epoch have changed."""
        if epoch <= self._followed.epoch:
            self._restart()

    def _restart(self) -> None:
        assert self._resumed is None, "cannot restart: no reports before the resumed epoch"
        self._followed, self._use = Followed(), ChangeUse()


def unseen_deviation(value: float, population: int, present: int) -> float:
    """Return the standard deviation of the count of all devices, given the count of those present.

    About `value` of `population` devices have the value 1, and `present`, at least 1, report.
    """
    share = min(max(value / population, 0.0), 1.0)
    absent = max(0, population - present) / max(1, population - 1)
    return population * math.sqrt(share * (1 - share) * absent / present)
