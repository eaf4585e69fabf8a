"""Estimate counts from fragments.

n contributors make tau reports each, and send T_j messages about item j in total. A bit is reported
with probability 1 - p if it is 1, and with probability p if it is 0. So y = (T_j / tau - n p) /
(1 - 2 p) estimates the number of ones among the bits that reports are made from. If a backstop
(memoized response) reverses true bits with probability p_b, (y - n p_b) / (1 - 2 p_b) estimates the
number of true ones.

The variance of y is n p (1 - p) / (tau (1 - 2 p)^2), and that of the backstop's bits is n p_b (1 -
p_b). With one report per user, the variance of y is n e^epsilon / (e^epsilon - 1)^2. Theorem III.2
of the paper has e^(epsilon / 2) in place of e^epsilon.

A permanent backstop reverses the same bits at every epoch. For users whose values stay the same, it
adds the same error at all epochs, which does not average out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_counts import ItemCountsAggregator
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.law_aggregator import check_format
from experiments.protocols.fragments import FragmentsLaw


class FragmentsAggregator(ItemCountsAggregator[FragmentsLaw]):
    """Count all messages and the messages about each item, for every epoch.

    >>> from dpstream.aggregators.estimate import Participation
    >>> from dpstream.randomizers.composed import ComposedLaw
    >>> law = FragmentsLaw(
    ...     1, 2, 1, 1, 1, "removal", "exact", ComposedLaw((3, 1)), None, 1.0, 0.1, 1.0
    ... )
    >>> aggregator = FragmentsAggregator(law)
    >>> aggregator.add(1, np.array([[0], [0], [0], [1]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 4)).values.tolist()  # (3 - 1) / 0.5, 0
    [4.0, 0.0]
    """

    may_be_silent = True

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        law = self.law
        check_format(epoch, law.last_epoch, words, law.message_format.dtype)
        if len(words) and int(words.max()) >= law.words:
            raise ValueError(
                f"message at epoch {epoch} is {words.max()}; expected 0 to {law.words - 1}"
            )

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        cells = words[:, 0].astype(np.int64) % self.law.items
        # Integers below 2^53: sums are exact.
        weights = None if counts is None else counts.astype(np.float64)
        about = np.bincount(cells, weights, self.law.items).astype(np.int64)
        return np.concatenate([[about.sum()], about])

    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        law = self.law
        ones = matched[1:].astype(np.float64) / law.reports
        for flips in (law.flips, law.backstop_flips):
            if flips is not None:
                reversed_ = float(flips.probability)
                ones = (ones - senders * reversed_) / (1 - 2 * reversed_)
        return ones, noise_variance(law, senders)

    def _of(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        found = super()._of(epoch, participation)
        if found is None:
            return None
        contributors = int(participation.contributors[epoch])
        scale = found.population / contributors
        return replace(found, lasting=scale * math.sqrt(lasting_variance(self.law, contributors)))


def lasting_variance(law: FragmentsLaw, contributors: int) -> float:
    """Return the part of `noise_variance` that a permanent backstop adds to all epochs alike."""
    if not law.permanent or law.backstop_flips is None:
        return 0.0
    stopped = float(law.backstop_flips.probability)
    return contributors * stopped * (1 - stopped) / (1 - 2 * stopped) ** 2


def noise_variance(law: FragmentsLaw, contributors: int) -> float:
    reversed_ = float(law.flips.probability)
    variance = contributors * reversed_ * (1 - reversed_) / law.reports / (1 - 2 * reversed_) ** 2
    if law.backstop_flips is None:
        return variance
    stopped = float(law.backstop_flips.probability)
    return (contributors * stopped * (1 - stopped) + variance) / (1 - 2 * stopped) ** 2
