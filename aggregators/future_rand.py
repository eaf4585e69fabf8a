"""FutureRand, server side: signs per dyadic interval, and how many devices have the value 1.

Algorithm 2 of "Randomize the Future", with each interval scaled by the devices enrolled over the
reports received for it, so that missing reports do not bias (as long as silence does not depend on
values) and devices may be enrolled at any epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.dyadic_tree import DyadicTree
from aggregators.estimate import GAP, NORMAL_95, Estimate
from randomizers.dyadic import dyadic_pieces, orders_due
from randomizers.future_rand import FutureRandLaw

FEW_REPORTS = 30
"""Below this many reports the variance is bounded instead of estimated."""

# Words counted at a time: np.bincount makes 8-byte integers of its whole input.
_COUNTED_AT_ONCE = 1 << 16


class FutureRandAggregator:
    """Counts of reports; equal whatever the order, and however they were split and merged.

    >>> from randomizers.accounting.future_rand import calibrate
    >>> from randomizers.future_rand import FutureRandParameters
    >>> law = calibrate(FutureRandParameters(epsilon=1.0, changes=1), last_epoch=2)
    >>> aggregator = FutureRandAggregator(law)
    >>> aggregator.add(1, np.array([[1], [0], [1]], np.uint8), None)
    >>> aggregator.tree.node(order=0, index=1)
    (1, 2)

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: FutureRandLaw) -> None:
        self.law = law
        self.tree = DyadicTree(law.horizon)

    def check_words(self, epoch: int, words: NDArray[np.uint8]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint8 of shape
                (reports, 1), or a word names an order that has no interval ending at the epoch.
        """
        if not 1 <= epoch <= self.law.horizon:
            raise ValueError(f"epoch {epoch}, the horizon has {self.law.horizon} epochs")
        if words.dtype != np.uint8 or words.ndim != 2 or words.shape[1] != 1:
            raise ValueError(
                f"words of epoch {epoch} are {words.dtype} of shape {words.shape}, "
                "must be uint8 of shape (reports, 1)"
            )
        due = orders_due(epoch)
        if words.size and int(words.max()) >= 2 * due:
            raise ValueError(
                f"word {words.max()} at epoch {epoch}, where the words due are 0 to {2 * due - 1}"
            )

    def add(
        self, epoch: int, words: NDArray[np.uint8], counts: NDArray[np.unsignedinteger] | None
    ) -> None:
        """Count reports.

        Args:
            epoch: 1 to the horizon.
            words: uint8, shape (rows, 1), as `FutureRand.report` returns.
            counts: unsigned, shape (rows,), how often each word was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        table = np.zeros(2 * orders_due(epoch), np.int64)
        if counts is None:
            for start in range(0, len(words), _COUNTED_AT_ONCE):
                chunk = words[start : start + _COUNTED_AT_ONCE, 0]
                table += np.bincount(chunk, minlength=table.size)
        else:
            np.add.at(table, words[:, 0], counts.astype(np.int64))
        self.tree.add(epoch, table.reshape(-1, 2))

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        self.tree.merge(other.tree)

    def to_bytes(self) -> bytes:
        """The counts; equal counts have equal bytes."""
        return self.tree.to_bytes()

    @classmethod
    def from_bytes(cls, law: FutureRandLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon.
        """
        aggregator = cls(law)
        aggregator.tree = DyadicTree.from_bytes(law.horizon, data)
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate:
        """How many devices have the value 1 at an epoch, from the reports up to it (Algorithm 2).

        The epochs 1 to `epoch` are made up of dyadic intervals, whose estimated partial sums are
        added. An interval without reports is made up of its two halves. What no report covers even
        so is taken as 0 and flagged `GAP`; each such interval widens the 95 % interval on both
        sides by 1.96 times the root mean square of the estimates for the other intervals of its
        length or, where there are none, by 1.96 times the population.

        Args:
            epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        value = variance = widening = 0.0
        reports = 0
        gaps = False
        for order, index in self._cover(dyadic_pieces(epoch)):
            negative, positive = self.tree.node(order, index)
            received = negative + positive
            population = float(attendance.population[index << order])
            if received:
                scale = population / self._c_gaps[order]
                mean = (positive - negative) / received
                value += scale * mean
                variance += scale**2 * self._variance_of_mean(order, mean, received)
                reports += received
            else:
                gaps = True
                widening += NORMAL_95 * self._typical_increment(order, epoch, attendance)
        deviation = math.sqrt(variance)
        half_width = NORMAL_95 * deviation + widening
        return Estimate(
            value=value,
            standard_deviation=deviation,
            low=value - half_width,
            high=value + half_width,
            reports=reports,
            population=int(attendance.population[epoch]),
            flags=(GAP,) if gaps else (),
        )

    @cached_property
    def _c_gaps(self) -> tuple[float, ...]:
        return self.law.c_gaps

    def _cover(self, nodes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Nodes that make up the same epochs, received where possible and as long as possible."""
        cover = []
        for order, index in nodes:
            halves = []
            if order and not any(self.tree.node(order, index)):
                halves = self._cover([(order - 1, 2 * index - 1), (order - 1, 2 * index)])
            if any(any(self.tree.node(*node)) for node in halves):
                cover += halves
            else:
                cover.append((order, index))
        return cover

    def _variance_of_mean(self, order: int, mean: float, received: int) -> float:
        """Variance of a mean of signs: estimated, or bounded where the reports are few.

        The expectation of a sign is at most c_gap, so a mean beyond it is no reason to believe in a
        smaller variance.
        """
        if received < FEW_REPORTS:
            return 1 / received
        return (1 - min(abs(mean), self._c_gaps[order]) ** 2) / (received - 1)

    def _typical_increment(self, order: int, epoch: int, attendance: Attendance) -> float:
        counts = self.tree.order_counts(order, epoch)
        received = counts.sum(axis=1)
        known = np.flatnonzero(received)
        if not len(known):
            return float(attendance.population[epoch])
        populations = attendance.population[(known + 1) << order]
        means = (counts[known, 1] - counts[known, 0]) / received[known]
        increments = populations * means / self._c_gaps[order]
        return math.sqrt(float(np.square(increments).mean()))


def predicted_standard_deviation(
    law: FutureRandLaw,
    epoch: int,
    users: int,
    moments: Sequence[tuple[float, float]] | None = None,
) -> float:
    """The standard deviation to expect of an estimate when everybody reports; before any data.

    With p the probability of its order, m the mean of the users' partial sums and q their mean
    square, an interval of the prefix adds users * ((1 / c_gap^2 - m^2) / p - (q - m^2)) to the
    variance. Where nothing is known of the values m and q are taken as 0, which is conservative.

    Args:
        law: the constants of the job.
        epoch: 1 to the horizon.
        users: how many are enrolled and report.
        moments: (m, q) of each of `dyadic_pieces(epoch)`; None if unknown.

    Returns:
        in users; infinite if an order that the prefix needs is never drawn.
    """
    pieces = dyadic_pieces(epoch)
    c_gaps, probabilities = law.c_gaps, law.order_probabilities
    variance = 0.0
    for (order, _), (mean, square) in zip(
        pieces, moments or [(0.0, 0.0)] * len(pieces), strict=True
    ):
        if not probabilities[order]:
            return math.inf
        signs = (1 / c_gaps[order] ** 2 - mean**2) / probabilities[order]
        variance += users * (signs - (square - mean**2))
    return math.sqrt(variance)
