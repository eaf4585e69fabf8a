"""Items over time, server side: signs per dyadic interval and row, and every item's count.

An interval's mean of sign times H[r, z], over its reports, is c_gap / 2 times the mean change of
"has item z" (`randomizers.hadamard_stream`): column z, from 1 on, adds up to 0 over the rows, so
nothing needs to be taken off. Intervals are combined as sums of signs by row, and one fast
Walsh-Hadamard transform of the result gives all items at once. A report's value is +-2 / c_gap for
every item, so the variance of each is four times that of a Boolean, whatever the domain.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.dyadic_tree import DyadicTree
from aggregators.estimate import GAP, ItemEstimates
from aggregators.hadamard import walsh_hadamard
from aggregators.increments import Increment
from aggregators.prefix_combiner import Prefixes
from aggregators.smoothed_estimates import SmoothedEstimates, smoothed_estimates
from aggregators.tree_smoothing import TreeEstimates
from randomizers.dyadic import orders_due
from randomizers.hadamard_stream import ORDER_BITS, HadamardStreamLaw

# Words counted at a time: np.bincount makes 8-byte integers of its whole input.
_COUNTED_AT_ONCE = 1 << 16


class HadamardStreamAggregator:
    """Counts of reports; equal whatever the order, and however they were split and merged.

    The cells of a node are the number of its reports, then the sum of their signs by row.

    >>> from randomizers.accounting.hadamard_stream import calibrate
    >>> from randomizers.hadamard_stream import HadamardStreamParameters
    >>> law = calibrate(HadamardStreamParameters(1.0, 2, ("walk", "bus", "car")), last_epoch=2)
    >>> aggregator = HadamardStreamAggregator(law)
    >>> words = np.array([[3 * 64 + 1], [3 * 64 + 1], [2 * 64 + 0]], np.uint32)
    >>> aggregator.add(1, words, None)
    >>> aggregator.tree.node(order=0, index=1)
    array([ 3,  0,  0, -1,  2])

    Args:
        law: the constants of the job.
        estimator: "tree" combines all complete intervals, "prefix" adds up the fewest.
    """

    def __init__(
        self, law: HadamardStreamLaw, estimator: Literal["tree", "prefix"] = "tree"
    ) -> None:
        self.law = law
        self.tree = DyadicTree(law.future_rand.horizon, cells=1 + law.rows)
        self._combine = estimator == "tree"
        self._prefixes = Prefixes(self.own_increments, law.rows, combine=self._combine)

    def check_words(self, epoch: int, words: NDArray[np.uint32]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint32 of shape
                (reports, 1), or a word names a row that there is not, or an order that is never
                drawn or has no interval ending at the epoch.
        """
        horizon = self.law.future_rand.horizon
        if not 1 <= epoch <= horizon:
            raise ValueError(f"epoch {epoch}, the horizon has {horizon} epochs")
        if words.dtype != np.uint32 or words.ndim != 2 or words.shape[1] != 1:
            raise ValueError(
                f"words of epoch {epoch} are {words.dtype} of shape {words.shape}, "
                "must be uint32 of shape (reports, 1)"
            )
        order = words[:, 0] >> 1 & ((1 << ORDER_BITS) - 1)
        drawn = np.zeros(1 << ORDER_BITS, np.bool_)
        due = orders_due(epoch)
        drawn[:due] = [weight > 0 for weight in self.law.future_rand.order_weights[:due]]
        wrong = (words[:, 0] >> ORDER_BITS + 1 >= self.law.rows) | ~drawn[order]
        if wrong.any():
            word = int(words[wrong.argmax(), 0])
            raise ValueError(
                f"word {word} at epoch {epoch}: row {word >> ORDER_BITS + 1} and order "
                f"{order[wrong.argmax()]}, the {self.law.rows} rows begin at 0, and the orders due "
                f"are {', '.join(map(str, np.flatnonzero(drawn)))}"
            )

    def add(
        self, epoch: int, words: NDArray[np.uint32], counts: NDArray[np.unsignedinteger] | None
    ) -> None:
        """Count reports.

        Args:
            epoch: 1 to the horizon.
            words: uint32, shape (rows, 1), as `HadamardStream.report` returns.
            counts: unsigned, shape (rows,), how often each word was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        due, rows = orders_due(epoch), self.law.rows
        table = np.zeros(due * rows * 2, np.int64)
        for start in range(0, len(words), _COUNTED_AT_ONCE):
            chunk = words[start : start + _COUNTED_AT_ONCE, 0]
            order, row = chunk >> 1 & ((1 << ORDER_BITS) - 1), chunk >> ORDER_BITS + 1
            cell = (order * rows + row) * 2 + (chunk & 1)
            if counts is None:
                table += np.bincount(cell, minlength=table.size)
            else:
                each = counts[start : start + _COUNTED_AT_ONCE].astype(np.int64)
                np.add.at(table, cell, each)
        negative, positive = table.reshape(due, rows, 2).transpose(2, 0, 1)
        received = (negative + positive).sum(axis=1, keepdims=True)
        self.tree.add(epoch, np.hstack([received, positive - negative]))
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
    def from_bytes(
        cls, law: HadamardStreamLaw, data: bytes, estimator: Literal["tree", "prefix"] = "tree"
    ) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon and domain.
        """
        aggregator = cls(law, estimator)
        horizon, cells = law.future_rand.horizon, 1 + law.rows
        aggregator.tree = tree = DyadicTree.from_bytes(horizon, cells, data, signed=True)
        for epoch in tree.epochs:
            received, *_ = (nodes := tree.nodes_due(epoch)).T
            if (np.abs(nodes[:, 1:]).sum(axis=1) > received).any():
                raise ValueError(f"a node complete at epoch {epoch} has more signs than reports")
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates:
        """How many devices have each item at an epoch, from the reports up to it.

        As with `FutureRandAggregator.estimate`; intervals that no report covers are taken as 0,
        widen all items' intervals and are flagged `GAP`.

        Args:
            epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        prefix = self._prefixes.at(epoch, attendance)
        total = prefix.total()
        population = int(attendance.population[epoch])
        transformed = walsh_hadamard(total.value) / math.sqrt(self.law.rows)
        return ItemEstimates(
            values=transformed[1 : 1 + self.law.items],
            standard_deviation=math.sqrt(total.variance),
            half_width=prefix.half_width(population),
            reports=total.reports,
            population=population,
            flags=(GAP,) if total.gaps else (),
        )

    def smoothed(self, last_epoch: int, attendance: Attendance) -> SmoothedEstimates:
        """How many devices had each item at every epoch, from all reports up to the last one.

        Args:
            last_epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        return smoothed_estimates(
            [
                self._own_order(order, last_epoch, attendance)
                for order in range(last_epoch.bit_length())
            ],
            attendance.population[1 : last_epoch + 1],
            combine=self._combine,
        )

    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        """As `own_increments`, of all intervals of an order, and of items instead of rows."""
        counts = self.tree.order_counts(order, last_epoch)
        received, signs = counts[:, 0], counts[:, 1:]
        at_least_one = np.maximum(received, 1)
        ends = np.arange(1, len(received) + 1) << order
        scale = 2 * attendance.population[ends] / self._c_gaps[order]
        # One factor for each interval, so the transform of integers may come first.
        items = walsh_hadamard(signs.astype(np.float64))[:, 1 : 1 + self.law.items]
        return TreeEstimates(
            values=items * (scale / at_least_one)[:, None],
            variances=np.where(received > 0, scale**2 / at_least_one, np.inf),
        )

    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the reports of every interval complete at an epoch say of it, by order.

        The values are the items' before an orthonormal Walsh-Hadamard transform: it keeps variances
        and mean squares as they are.
        """
        population = float(attendance.population[epoch])
        return [
            self._own_increment(2 * population / c_gap, int(node[0]), node[1:])
            for c_gap, node in zip(self._c_gaps, self.tree.nodes_due(epoch), strict=False)
        ]

    def _own_increment(
        self, scale: float, received: int, signs: NDArray[np.int64]
    ) -> Increment | None:
        if not received:
            return None
        # Of a single item the square of its mean is to be taken off; it is small, and all items
        # have one error bar.
        variance = scale**2 / received
        return Increment(
            value=np.multiply(signs, scale * math.sqrt(self.law.rows) / received, dtype=np.float64),
            prior_variance=variance,
            variance=variance,
            reports=received,
        )

    @cached_property
    def _c_gaps(self) -> tuple[float, ...]:
        return self.law.future_rand.c_gaps
