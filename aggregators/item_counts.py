"""Estimate item counts at independent epochs from the messages that support each item."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.counts import added_up
from dpstream.aggregators.epoch_tables import TableAggregator
from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.item_domains import MOST_PUBLISHED


class ItemsLaw(Protocol):
    @property
    def items(self) -> int: ...

    @property
    def last_epoch(self) -> int: ...

    @property
    def minimum(self) -> int:
        """Minimum number of contributors in a released window."""


LawT = TypeVar("LawT", bound=ItemsLaw)


class ItemCountsAggregator(TableAggregator[LawT]):
    may_be_silent: ClassVar[bool] = False
    """True if a contributor can send no message at all, so that an empty window counts as data."""

    @property
    def cells(self) -> int:
        return self.law.items + 1

    @abstractmethod
    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        """Return the number of messages, then the count to add for each item, shape (cells,).

        The count is that of messages supporting the item, unless a subclass defines it otherwise.
        """

    @abstractmethod
    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        """Return the estimated number of senders per item and the largest noise variance."""

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        self._tables.add_table(epoch, self._matches(words, counts))

    def estimate(
        self, epoch: int, participation: Participation
    ) -> ItemEstimates | HeavyHitters | None:
        found = self._of(epoch, participation)
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def window(self, epochs: Sequence[int], participation: Participation) -> ItemEstimates | None:
        return added_up(self._of(epoch, participation) for epoch in epochs)

    def _of(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        contributors = int(participation.contributors[epoch])
        matched = self._tables.counts(epoch)
        if matched is None and self.may_be_silent:
            matched = np.zeros(self.cells, np.int64)
        if matched is None or contributors < self.law.minimum:
            return None
        senders = participation.senders(epoch)
        counts, noise = self._counts(matched, senders)
        reports = int(matched[0]) * contributors // senders
        return item_estimates(counts, noise, np.max, reports, epoch, participation)


def spoken_for_variance(
    probabilities: tuple[Fraction, Fraction], messages: float, holders: float
) -> float:
    """Return the variance of an item's count if every user sends one message.

    `probabilities` are those of a message supporting the item, from users with it and from others.
    `holders` is the number of users with the item.
    """
    held, other = map(float, probabilities)
    own, others = holders * held * (1 - held), (messages - holders) * other * (1 - other)
    return (own + others) / (held - other) ** 2


def level_variance(
    probabilities: tuple[Fraction, Fraction],
    reports: float,
    population: float,
    share: float,
    epochs: int = 1,
) -> float:
    """Return the largest variance of a prefix cell's count.

    The users of a level are chosen at random, and report at one of the epochs. If a fraction p of N
    users is in the cell, and m users report on the level at every epoch, this adds
    N^2 p (1 - p) (N - m) / (m (N - 1)) to the variance of an epoch. Errors of epochs are added up
    as if they were independent; see `dpstream.aggregators.window_errors.IndependentWindows`.

    Args:
        probabilities: Those of a message in the cell's set, from users in the cell and from others.
        reports: Number of reports on the level, at all epochs.
        population: Number of users N, the mean over the epochs.
        share: Fraction p of users in the fullest cell; 0 for empty cells.
        epochs: Number of epochs whose mean count is estimated.
    """
    most, reports = min(max(share, 0.0), 1.0), max(reports, 1.0)
    noise = max(
        spoken_for_variance(probabilities, reports, holders) for holders in (0.0, most * reports)
    )
    absent = max(0.0, population - reports / epochs) / max(1.0, population - 1) / reports
    spread = min(most, 0.5) * (1 - min(most, 0.5))
    return population**2 * (noise / reports**2 + spread * absent)


def scaled_levels(
    levels: Iterable[tuple[NDArray[np.int64], int, tuple[Fraction, Fraction]]],
    population: float,
    epochs: int = 1,
) -> tuple[NDArray[np.float64], float, float]:
    """Scale counts from the users who report on each level of prefixes to the population.

    Each of the `levels` has the number of messages in the set of each cell, shape (buckets,), the
    number of all messages, and probabilities as for `level_variance`. Returns all cells, the
    variance of an empty cell, and what users add to the variance of the fullest one.
    """
    cells: list[NDArray[np.float64]] = []
    empty: list[float] = []
    full: list[float] = []
    for inside, reports, probabilities in levels:
        held, other = map(float, probabilities)
        counts = (inside.astype(np.float64) - other * reports) / (held - other)
        shares = counts / max(reports, 1)
        cells.append(population * shares)
        about = probabilities, reports, population
        empty.append(level_variance(*about, 0.0, epochs))
        full.append(level_variance(*about, float(shares.max()), epochs))
    return np.concatenate(cells), max(empty), max(full) - max(empty)


def item_estimates(
    counts: NDArray[np.float64],
    noise: float,
    over_items: Callable[[NDArray[np.float64]], np.float64],
    reports: int,
    epoch: int,
    participation: Participation,
) -> ItemEstimates:
    """Scale estimates from the contributors to the population.

    Absent users are assumed to be like those that report. If a fraction p of N users has an item
    and a random n of them report, this adds N^2 p (1 - p) (N - n) / (n (N - 1)) to the variance.
    `counts` are the contributors with each item, shape (items,), with the variance `noise`.
    `over_items` reduces p (1 - p) over all items: the mean or the maximum.
    """
    contributors = int(participation.contributors[epoch])
    population = int(participation.population[epoch])
    scale = population / contributors
    shares = np.clip(counts / contributors, 0.0, 1.0)
    absent = max(0, population - contributors) / max(1, population - 1) / contributors
    sampling = population**2 * float(over_items(shares * (1 - shares))) * absent
    deviation = math.sqrt(scale**2 * noise + sampling)
    return ItemEstimates(
        values=scale * counts,
        standard_error=deviation,
        half_width=NORMAL_95 * deviation,
        reports=reports,
        population=population,
    )
