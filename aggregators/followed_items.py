"""Track items over time: the part common to shuffled counts of labels and numbers.

The messages for having an item, minus dummies and collisions, estimate its count plus r (the boost)
times the number of users who gained it. The messages for losing it estimate r times the number of
users who lost it. Published estimates track the difference as in
`dpstream.aggregators.shuffled_counts`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.message_aggregator import MessageAggregator
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ItemStreamLaw

LawType = TypeVar("LawType", bound=ItemStreamLaw)
EstimateType = TypeVar("EstimateType", bound=ItemEstimates)


@dataclass(frozen=True, slots=True, eq=False)
class FollowedEpoch:
    """The estimates of an epoch, in users, shape (items,); epoch 0 is before the first.

    `variance` comes from `FollowedItems._signed`. `absence_error` is the standard deviation due to
    absent devices, from `FollowedItems._sampled`. `known` is True if any epoch so far was released;
    `released` is True if this one was.
    """

    epoch: int
    values: NDArray[np.float64]
    variance: float = 0.0
    absence_error: float = 0.0
    known: bool = False
    released: bool = False


class FollowedItems(MessageAggregator[LawType], Generic[LawType, EstimateType]):
    def __init__(self, law: LawType) -> None:
        super().__init__(law)
        self._participation: Participation | None = None
        self._followed = FollowedEpoch(0, np.zeros(law.size))

    @abstractmethod
    def _signed(self, epoch: int, senders: int) -> tuple[NDArray[np.float64], float]:
        """Return the messages for having each item minus those for losing it, and the variance."""

    @abstractmethod
    def _sampled(self, values: NDArray[np.float64], population: int) -> float:
        """Return the variance that one user, drawn at random, adds to an estimate."""

    @abstractmethod
    def _published(self, found: FollowedEpoch, population: int) -> EstimateType:
        """Return the estimates to publish for an epoch at or after the first release."""

    def _words(self, epoch: int) -> int:
        return self.law.words * len(self.law.noises)

    def _changed(self, epoch: int) -> None:
        if epoch <= self._followed.epoch:
            self._drop()

    def estimate(self, epoch: int, participation: Participation) -> EstimateType | None:
        """Estimate the number of users with each item; return None before the first release.

        A suppressed epoch repeats the previous estimates, flagged `GAP`. The entries of one
        `participation` object up to the epoch must not change between calls.
        """
        if self._participation is not participation or self._followed.epoch > epoch:
            self._drop()
            self._participation = participation
        while self._followed.epoch < epoch:
            self._followed = self._next(participation)
        found = self._followed
        return self._published(found, int(participation.population[epoch])) if found.known else None

    def _drop(self) -> None:
        self._followed = FollowedEpoch(0, np.zeros(self.law.size))

    def _next(self, participation: Participation) -> FollowedEpoch:
        before, boost = self._followed, self.law.boost
        epoch = before.epoch + 1
        contributors = int(participation.contributors[epoch])
        if contributors < self.law.noises[0].minimum:
            return FollowedEpoch(
                epoch, before.values, before.variance, before.absence_error, before.known
            )
        population = int(participation.population[epoch])
        scale = population / contributors
        found, variance = self._signed(epoch, participation.senders(epoch))
        values = (boost * before.values + scale * found) / (boost + 1)
        absent = max(0, population - contributors) / max(1, population - 1)
        sampled = self._sampled(values, population) * absent / contributors
        return FollowedEpoch(
            epoch,
            values,
            (boost**2 * before.variance + scale**2 * variance) / (boost + 1) ** 2,
            (boost * before.absence_error + population * math.sqrt(sampled)) / (boost + 1),
            known=True,
            released=True,
        )


def averaged_noise(boost: int, last_epoch: int) -> NDArray[np.float64]:
    """Return the fraction of a window's noise variance left in estimates, shape (last_epoch,)."""
    kept = (boost / (boost + 1)) ** 2
    return (1 - np.power(kept, np.arange(1, last_epoch + 1))) / (2 * boost + 1)
