"""Items over time, server side: signs per dyadic interval and row, and every item's count.

An interval's mean of sign times H[r, z], over its reports, is c_gap / 2 times the mean change of
"has item z" (`randomizers.hadamard_stream`): column z, from 1 on, adds up to 0 over the rows, so
nothing needs to be taken off. Intervals are combined as sums of signs by row, and one fast
Walsh-Hadamard transform of the result gives all items at once. A report's value is +-2 / c_gap for
every item, so the variance of each is four times that of a Boolean, whatever the domain.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.dyadic_aggregator import DyadicAggregator, Estimator
from aggregators.dyadic_tree import DyadicTree
from aggregators.estimate import GAP
from aggregators.increments import Increment
from aggregators.interval_scales import interval_scales
from aggregators.item_estimates import ItemEstimates
from aggregators.report_words import check_form
from aggregators.tree_smoothing import TreeEstimates
from aggregators.walsh_hadamard import walsh_hadamard
from randomizers.dyadic import orders_due
from randomizers.hadamard_stream import ORDER_BITS, HadamardStreamLaw

_LENGTH_BYTES = 8
# Words counted at a time: np.bincount makes 8-byte integers of its whole input.
_COUNTED_AT_ONCE = 1 << 16


class HadamardStreamAggregator(DyadicAggregator):
    """Counts of reports; equal whatever the order, and however they were split and merged.

    The cells of a node are the number of its reports, then the sum of their signs by row.

    >>> from randomizers.hadamard_stream.calibration import calibrate
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
        share: of the devices that run this law, where each draws one of several.
    """

    def __init__(
        self,
        law: HadamardStreamLaw,
        estimator: Estimator = "tree",
        share: float = 1.0,
    ) -> None:
        super().__init__(law.future_rand, law.rows, estimator, share)
        self.law = law
        self.tree = DyadicTree(law.future_rand.horizon, cells=1 + law.rows)
        self.newcomers = DyadicTree(law.future_rand.horizon, cells=1 + law.rows)

    def check_words(self, epoch: int, words: NDArray[np.uint32]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint32 of shape
                (reports, 1), or a word names a row that there is not, or an order that is never
                drawn or has no interval ending at the epoch.
        """
        check_form(epoch, self.law.future_rand.horizon, words, np.uint32)
        order = words[:, 0] >> 1 & ((1 << ORDER_BITS) - 1)
        drawn = np.zeros(1 << ORDER_BITS, np.bool_)
        due = orders_due(epoch)
        drawn[:due] = [weight > 0 for weight in self.law.future_rand.order_weights[:due]]
        # Before the first interval of an order nobody was enrolled.
        later = np.array([epoch >> each > 1 for each in range(1 << ORDER_BITS)])
        shift = self.law.newcomer_shift
        newcomer = words[:, 0] >> shift
        row = (words[:, 0] & ((1 << shift) - 1)) >> ORDER_BITS + 1
        wrong = (row >= self.law.rows) | ~drawn[order]
        wrong |= (newcomer > 1) | (newcomer == 1) & ~later[order]
        if wrong.any():
            word = int(words[wrong.argmax(), 0])
            raise ValueError(
                f"word {word} at epoch {epoch}: row {row[wrong.argmax()]} and order "
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
        newcomers = words[:, 0] >> self.law.newcomer_shift > 0
        for tree, which in ((self.tree, ~newcomers), (self.newcomers, newcomers)):
            if which.any():
                self._count(tree, epoch, words[which, 0], None if counts is None else counts[which])
        self._prefixes.changed(epoch)

    def _count(
        self,
        tree: DyadicTree,
        epoch: int,
        words: NDArray[np.uint32],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        due, rows = orders_due(epoch), self.law.rows
        table = np.zeros(due * rows * 2, np.int64)
        for start in range(0, len(words), _COUNTED_AT_ONCE):
            chunk = words[start : start + _COUNTED_AT_ONCE] & ((1 << self.law.newcomer_shift) - 1)
            order, row = chunk >> 1 & ((1 << ORDER_BITS) - 1), chunk >> ORDER_BITS + 1
            cell = (order * rows + row) * 2 + (chunk & 1)
            if counts is None:
                table += np.bincount(cell, minlength=table.size)
            else:
                each = counts[start : start + _COUNTED_AT_ONCE].astype(np.int64)
                np.add.at(table, cell, each)
        negative, positive = table.reshape(due, rows, 2).transpose(2, 0, 1)
        received = (negative + positive).sum(axis=1, keepdims=True)
        tree.add(epoch, np.hstack([received, positive - negative]))

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        self.tree.merge(other.tree)
        self.newcomers.merge(other.newcomers)
        self._prefixes.changed(min(other.tree.first_epoch, other.newcomers.first_epoch))

    def to_bytes(self) -> bytes:
        """The length of the counts (u8), the counts, and those of newcomers; equal ones: equal."""
        counts = self.tree.to_bytes()
        return len(counts).to_bytes(_LENGTH_BYTES, "little") + counts + self.newcomers.to_bytes()

    @classmethod
    def from_bytes(
        cls,
        law: HadamardStreamLaw,
        data: bytes,
        estimator: Estimator = "tree",
        share: float = 1.0,
    ) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon and domain.
        """
        aggregator = cls(law, estimator, share)
        horizon, cells = law.future_rand.horizon, 1 + law.rows
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if end > len(data):
            raise ValueError(f"counts of {len(data)} bytes end before byte {end}")
        parts = data[_LENGTH_BYTES:end], data[end:]
        trees = [DyadicTree.from_bytes(horizon, cells, part, signed=True) for part in parts]
        for tree in trees:
            for epoch in tree.epochs:
                received, *_ = (nodes := tree.nodes_due(epoch)).T
                if (np.abs(nodes[:, 1:]).sum(axis=1) > received).any():
                    raise ValueError(
                        f"a node complete at epoch {epoch} has more signs than reports"
                    )
        aggregator.tree, aggregator.newcomers = trees
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

    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the reports of every interval complete at an epoch say of it, by order.

        The values are the items' before an orthonormal Walsh-Hadamard transform: it keeps variances
        and mean squares as they are.
        """
        others, newcomers = self.tree.nodes_due(epoch), self.newcomers.nodes_due(epoch)
        ends, root = np.full(len(others), epoch), math.sqrt(self.law.rows)
        found = self._own(np.arange(len(others)), ends, others, newcomers, attendance, root)
        return found.increments(reports=others[:, 0] + newcomers[:, 0])

    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        """Of items instead of rows."""
        others = self.tree.order_counts(order, last_epoch)
        newcomers = self.newcomers.order_counts(order, last_epoch)
        orders, ends = np.full(len(others), order), np.arange(1, len(others) + 1) << order
        rows = self._own(orders, ends, others, newcomers, attendance, 1.0)
        items = walsh_hadamard(rows.values)[:, 1 : 1 + self.law.items]
        return TreeEstimates(items, rows.variances)

    def _own(
        self,
        orders: NDArray[np.int64],
        ends: NDArray[np.int64],
        others: NDArray[np.int64],
        newcomers: NDArray[np.int64],
        attendance: Attendance,
        factor: float,
    ) -> TreeEstimates:
        """Estimates by row, times a factor.

        The variances are those of an item. Of a single one the square of its mean is to be taken
        off; it is small, and all items have one error bar.
        """
        received = np.stack([others[:, 0], newcomers[:, 0]], axis=1)
        # b counts twice.
        c_gaps, probabilities = self._c_gaps[orders] / 2, self._order_probabilities[orders]
        begins = ends - (1 << orders)
        scales = interval_scales(begins, ends, c_gaps, probabilities, attendance, received)
        values = scales.scale[:, None] * others[:, 1:]
        if received[:, 1].any():
            values += scales.newcomer_scale[:, None] * newcomers[:, 1:]
        return TreeEstimates(factor * values, scales.variances)
