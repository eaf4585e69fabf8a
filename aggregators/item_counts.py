"""Every item's count at epochs that stand alone, from how many messages speak for each item."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.counts import added_up
from dpstream.aggregators.epoch_tables import TableAggregator
from dpstream.aggregators.estimate import NORMAL_95, Attendance
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.item_domains import MOST_PUBLISHED


class ItemsLaw(Protocol):
    """What has to be known of the constants of a job."""

    @property
    def items(self) -> int:
        """Size of the domain."""
        ...

    @property
    def last_epoch(self) -> int:
        """Number of epochs."""
        ...

    @property
    def minimum(self) -> int:
        """The fewest contributors of a window that is released."""
        ...


LawT = TypeVar("LawT", bound=ItemsLaw)


class ItemCountsAggregator(TableAggregator[LawT]):
    """For every epoch the number of messages, and how many of them speak for each item.

    Args:
        law: the constants of the job.
    """

    may_be_silent: ClassVar[bool] = False
    """Whether contributors may have sent no message at all, which tells something then."""

    @property
    def cells(self) -> int:
        """How many numbers are kept of an epoch."""
        return self.law.items + 1

    @abstractmethod
    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        """The number of messages, and what is added up of them: shape (cells,).

        Those that speak for each item, unless a class says otherwise.
        """

    @abstractmethod
    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        """Senders with each item, shape (items,), and the largest variance of their noise."""

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        self._tables.add_table(epoch, self._matches(words, counts))

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates | FoundItems | None:
        """How many users hold each item at an epoch; None of a window that was withheld.

        Of a domain too large to be published, the items most held. The standard deviation is that
        of the item that is estimated worst.
        """
        found = self._of(epoch, attendance)
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def window(self, epochs: Sequence[int], attendance: Attendance) -> ItemEstimates | None:
        """All items, epochs added up; None if one of them was withheld."""
        return added_up(self._of(epoch, attendance) for epoch in epochs)

    def _of(self, epoch: int, attendance: Attendance) -> ItemEstimates | None:
        contributors = int(attendance.contributors[epoch])
        matched = self._tables.counts(epoch)
        if matched is None and self.may_be_silent:
            matched = np.zeros(self.cells, np.int64)
        if matched is None or contributors < self.law.minimum:
            return None
        senders = attendance.senders(epoch)
        counts, noise = self._counts(matched, senders)
        reports = int(matched[0]) * contributors // senders
        return item_estimates(counts, noise, np.max, reports, epoch, attendance)


def spoken_for_variance(
    probabilities: tuple[Fraction, Fraction], messages: float, holders: float
) -> float:
    """Variance of the count of an item, from one message of each user that speaks for it or not.

    Args:
        probabilities: that the message of a user who holds the item does, and of one who does not.
        messages: how many there are.
        holders: how many of their users hold the item.
    """
    held, other = map(float, probabilities)
    own, others = holders * held * (1 - held), (messages - holders) * other * (1 - other)
    return (own + others) / (held - other) ** 2


def item_estimates(
    counts: NDArray[np.float64],
    noise: float,
    over_items: Callable[[NDArray[np.float64]], np.float64],
    reports: int,
    epoch: int,
    attendance: Attendance,
) -> ItemEstimates:
    """Estimates for the population, from those for the contributors.

    Those who report speak for the silent: with a share p of N users holding an item and n of them
    reporting at random, this adds N^2 p (1 - p) (N - n) / (n (N - 1)) to the variance.

    Args:
        counts: contributors with each item, by estimate, shape (items,).
        noise: variance of these.
        over_items: what p (1 - p) of all items is to be taken: the mean, or the largest.
        reports: how many the estimates rest on.
        epoch: which one they are of.
        attendance: head counts; somebody contributed.
    """
    contributors = int(attendance.contributors[epoch])
    population = int(attendance.population[epoch])
    scale = population / contributors
    shares = np.clip(counts / contributors, 0.0, 1.0)
    silent = max(0, population - contributors) / max(1, population - 1) / contributors
    sampling = population**2 * float(over_items(shares * (1 - shares))) * silent
    deviation = math.sqrt(scale**2 * noise + sampling)
    return ItemEstimates(
        values=scale * counts,
        standard_deviation=deviation,
        half_width=NORMAL_95 * deviation,
        reports=reports,
        population=population,
    )
