"""Counts from tuples of Hadamard columns, server side.

Of M messages of an epoch, m lie in the set of an item. Those about the item all do; every other
one, of the blanket or about another item, does with probability q = 2^-tau, independently. So
(m - q M) / (1 - q) estimates the number f of users with the item without bias, whatever M and
however many dummies are among them, and its variance is q (M - f) / (1 - q).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.hadamard_matches import matches
from dpstream.aggregators.item_counts import ItemCountsAggregator
from dpstream.aggregators.law_aggregator import check_form
from dpstream.randomizers.hadamard import HadamardLaw


class HadamardAggregator(ItemCountsAggregator[HadamardLaw]):
    """For every epoch the number of messages, and how many lie in the set of each item.

    >>> from dpstream.aggregators.estimate import Attendance
    >>> law = HadamardLaw(2, 1, 2, 1, 1, 2.0, "bernoulli", 1.0, 0.1, 1.0)
    >>> aggregator = HadamardAggregator(law)
    >>> aggregator.add(1, np.array([[2, 0], [3, 2], [1, 1], [2, 2]], np.uint8), None)
    >>> estimates = aggregator.estimate(1, Attendance.constant(1, 4))
    >>> estimates.values.round(2).tolist()  # 2 and 1 messages lie in the sets, of 4
    [1.33, 0.0]
    """

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be messages of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array has another dtype or shape
                than (messages, rows), or a word is no column.
        """
        law = self.law
        form = law.word_form
        check_form(epoch, law.last_epoch, words, form.dtype, form.width)
        if words.size and int(words.max()) >= law.columns:
            raise ValueError(f"column {words.max()} at epoch {epoch}, there are {law.columns}")

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        return matches(words, counts, self.law.items)

    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        overlap, messages = self.law.overlap, int(matched[0])
        counts = (matched[1:].astype(np.float64) - overlap * messages) / (1 - overlap)
        fewest = min(max(float(counts.min()), 0.0), messages)
        return counts, noise_variance(self.law, messages - fewest)


def noise_variance(law: HadamardLaw, others: float) -> float:
    """Variance of an item's count with so many messages that are not about it."""
    return law.overlap * others / (1 - law.overlap)
