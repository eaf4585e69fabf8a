"""A shuffled tree, server side: messages per dyadic interval, and how many devices have value 1.

An interval's messages of devices that became 1, less those of devices that became 0, are the change
of the count over it: dummies are as many on either side and cancel. It is scaled to all devices by
those that were there at its end. Intervals are put together as for any dyadic tree, online and
looking back (`aggregators.dyadic_aggregator`).
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.dyadic_aggregator import IntervalAggregator, prefix_estimate
from aggregators.dyadic_tree import DyadicTree
from aggregators.estimate import Estimate
from aggregators.increments import Increment
from aggregators.report_words import check_form
from aggregators.tree_smoothing import TreeEstimates
from randomizers.shuffled_tree import ShuffledTreeLaw
from randomizers.tree_variances import combined_variances, smoothed_variances

_CELLS = 2


class ShuffledTreeAggregator(IntervalAggregator):
    """Counts of messages; equal whatever the order, and however they were split and merged.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledTreeLaw) -> None:
        super().__init__(1, "tree")
        self.law = law
        self.tree = DyadicTree(law.horizon, _CELLS)

    def check_words(self, epoch: int, words: NDArray[np.uint8]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint8 of shape
                (reports, 1), or a word is of no interval that ends at the epoch.
        """
        check_form(epoch, self.law.last_epoch, words, np.uint8)
        due = self.law.orders_due(epoch)
        wrong = words >= _CELLS * due
        if self.law.cells == 1:
            wrong |= words & 1 == 1
        if wrong.any():
            only = "" if self.law.cells == 2 else ", even ones"
            raise ValueError(
                f"word {words[wrong][0]} at epoch {epoch}, where the words due are 0 to "
                f"{_CELLS * due - 1}{only}"
            )

    def add(
        self, epoch: int, words: NDArray[np.uint8], counts: NDArray[np.unsignedinteger] | None
    ) -> None:
        """Count messages.

        Args:
            epoch: 1 to the last one.
            words: uint8, shape (rows, 1), as `ShuffledTree.report` sends them.
            counts: unsigned, shape (rows,), how often each word was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        table = np.zeros((len(self.tree.nodes_due(epoch)), _CELLS), np.int64)
        often = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        np.add.at(table.ravel(), words[:, 0], often)
        self.tree.add(epoch, table)
        self._prefixes.changed(epoch)

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        self.tree.merge(other.tree)
        self._prefixes.changed(other.tree.first_epoch)

    def to_bytes(self) -> bytes:
        """The counts; equal counts have equal bytes."""
        return self.tree.to_bytes()

    @classmethod
    def from_bytes(cls, law: ShuffledTreeLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon.
        """
        aggregator = cls(law)
        aggregator.tree = DyadicTree.from_bytes(law.horizon, _CELLS, data, signed=False)
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate:
        """How many devices have the value 1 at an epoch, from the messages up to it.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one.
        """
        return prefix_estimate(
            self._prefixes.at(epoch, attendance), int(attendance.population[epoch])
        )

    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the messages of every interval complete at an epoch say of it, by order."""
        counts = self.tree.nodes_due(epoch)
        increments: list[Increment | None] = []
        for order, count in enumerate(counts):
            own = self._own(order, np.array([epoch]), count[None], attendance)
            increments += own.increments(reports=count[None].sum(axis=1))
        return increments

    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        counts = self.tree.order_counts(order, last_epoch)
        ends = np.arange(1, len(counts) + 1) << order
        return self._own(order, ends, counts, attendance)

    def _own(
        self,
        order: int,
        ends: NDArray[np.int64],
        counts: NDArray[np.int64],
        attendance: Attendance,
    ) -> TreeEstimates:
        """Intervals of an order; of one that is left out, or was withheld, nothing is known."""
        if order >= len(self.law.noises):
            return TreeEstimates(np.zeros((len(ends), 1)), np.full(len(ends), np.inf))
        noise, cells = self.law.noises[order], self.law.cells
        contributors = attendance.contributors[ends]
        released = contributors >= noise.minimum
        present = np.maximum(contributors, 1)
        population = attendance.population[ends]
        moments = np.array([noise.moments(count) for count in contributors.tolist()])
        dummies, spread = moments.reshape(-1, 2).T
        scale = population / present
        plus, minus = counts[:, 0], counts[:, 1]
        values = scale * (plus - (minus if cells == 2 else dummies))
        variances = np.square(scale) * cells * spread
        # Silent devices may have changed otherwise than those who spoke for them.
        share = np.clip((plus + minus - cells * dummies) / present, 0.0, 1.0)
        silent = np.maximum(population - contributors, 0) / np.maximum(population - 1, 1)
        return TreeEstimates(
            values=values[:, None],
            variances=np.where(released, variances, np.inf),
            estimated=variances + np.square(population) * share * silent / present,
        )


def interval_variances(law: ShuffledTreeLaw, last_epoch: int, users: int) -> list[float]:
    """Variance of an interval's own estimate, by order, when so many users all report."""
    followed = [law.cells * noise.moments(users)[1] for noise in law.noises]
    return [*followed, math.inf][: last_epoch.bit_length()]


def predicted_deviations(law: ShuffledTreeLaw, last_epoch: int, users: int) -> NDArray[np.float64]:
    """The standard deviations to expect when everybody reports: in users, shape (last_epoch,)."""
    epochs = np.arange(1, last_epoch + 1)
    predicted = np.zeros(last_epoch)
    for order, variance in enumerate(
        combined_variances(interval_variances(law, last_epoch, users))
    ):
        predicted[epochs >> order & 1 == 1] += variance
    return np.sqrt(predicted)


def predicted_smoothed_deviations(
    law: ShuffledTreeLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """As `predicted_deviations`, of the estimates smoothed over the epochs 1 to the last."""
    variances = interval_variances(law, last_epoch, users)
    return np.sqrt(smoothed_variances(variances, last_epoch, np.arange(1, last_epoch + 1)))
