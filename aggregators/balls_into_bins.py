"""Balls into bins, server side: words counted, and the count of every item of an epoch.

Of M real messages, N lie in the bucket of an item: its own, a part q of all others, and dummies.
With their mean known, (N - dummies - q M) / (1 - q) is unbiased, and so it is with the messages
received less all dummies for M.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.bucket_counts import bucket_counts, bucket_counts_of
from aggregators.estimate import NORMAL_95, ItemEstimates
from aggregators.report_words import check_form
from aggregators.word_counts import WordCounts
from randomizers.balls_into_bins import BallsIntoBinsLaw

_EPOCH_BYTES = 8


class BallsIntoBinsAggregator:
    """Counts of words; equal whatever the order, and however they were split and merged.

    >>> from randomizers.accounting.balls_into_bins import calibrate
    >>> from randomizers.balls_into_bins import BallsIntoBinsParameters
    >>> law = calibrate(BallsIntoBinsParameters(1.0, 1e-6, ("red", "green", "blue")), 1, 100)
    >>> law.buckets, round(law.noise.mean, 2)
    (3, 42.66)
    >>> aggregator = BallsIntoBinsAggregator(law)
    >>> aggregator.add(1, np.array([[0], [1], [2]], np.uint8), np.array([40, 90, 55]))
    >>> aggregator.estimate(1, Attendance.constant(1, 100)).values.round(1).tolist()
    [-2.7, 47.3, 12.3]

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: BallsIntoBinsLaw) -> None:
        self.law = law
        self._received: dict[int, WordCounts] = {}

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array has another dtype than the
                law's or another shape than (reports, 1), or there is no such word.
        """
        check_form(epoch, self.law.last_epoch, words, self.law.word_dtype.type)
        largest = int(words.max(initial=0))
        if largest >= self.law.hashes.words:
            raise ValueError(
                f"word {largest} at epoch {epoch}, must be below {self.law.hashes.words}"
            )

    def add(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        """Count words.

        Args:
            epoch: 1 to the last one.
            words: of the law's dtype, shape (rows, 1), as `BallsIntoBins.report` returns.
            counts: unsigned, shape (rows,), how often each word was received; None for once each.

        Raises:
            ValueError: from `check_words`; nothing is counted then.
        """
        self.check_words(epoch, words)
        if len(words):
            self._kept(epoch).add(words[:, 0], counts)

    def merge(self, other: Self) -> None:
        """Count what another aggregator of the same law has counted.

        Raises:
            ValueError: it has another law.
        """
        if other.law != self.law:
            raise ValueError("aggregators of two different laws cannot be merged")
        for epoch, received in other._received.items():
            self._kept(epoch).merge(received)

    def to_bytes(self) -> bytes:
        """For every epoch with words: epoch (u8) and `WordCounts.to_bytes`; ascending."""
        return b"".join(
            epoch.to_bytes(_EPOCH_BYTES, "little") + self._received[epoch].to_bytes()
            for epoch in sorted(self._received)
        )

    @classmethod
    def from_bytes(cls, law: BallsIntoBinsLaw, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this law.
        """
        aggregator = cls(law)
        before, start = 0, 0
        while start < len(data):
            epoch = int.from_bytes(data[start : start + _EPOCH_BYTES], "little")
            received, start = WordCounts.from_bytes(law.word_dtype, data, start + _EPOCH_BYTES)
            if epoch <= before or not len(received.words):
                raise ValueError(f"counts of epoch {epoch} after those of epoch {before}, or none")
            aggregator.check_words(epoch, received.words[:, None])
            aggregator._received[epoch] = received
            before = epoch
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates | None:
        """How many users hold each item at an epoch; None if its window was withheld.

        Those who report speak for the silent: with a share p of N users holding an item and n of
        them reporting at random, this adds N^2 p (1 - p) (N - n) / (n (N - 1)) to the variance.
        The standard deviation is that of a mean variance over the items.

        Args:
            epoch: 1 to the last one.
            attendance: head counts.
        """
        received, law = self._of(epoch), self.law
        found = bucket_counts(law.hashes, received.words, received.counts, law.size)
        return self._estimates(epoch, found, attendance)

    def estimate_of(
        self, epoch: int, items: NDArray[np.int64], attendance: Attendance
    ) -> ItemEstimates | None:
        """The same of a few items only, numbered from 1; shape (n,)."""
        received = self._of(epoch)
        found = bucket_counts_of(self.law.hashes, received.words, received.counts, items - 1)
        return self._estimates(epoch, found, attendance)

    def _of(self, epoch: int) -> WordCounts:
        return self._received.get(epoch, WordCounts(self.law.word_dtype))

    def _kept(self, epoch: int) -> WordCounts:
        return self._received.setdefault(epoch, WordCounts(self.law.word_dtype))

    def _estimates(
        self, epoch: int, found: NDArray[np.int64], attendance: Attendance
    ) -> ItemEstimates | None:
        law, received = self.law, self._of(epoch).messages
        contributors = int(attendance.contributors[epoch])
        if contributors < law.noise.minimum:
            return None
        population = int(attendance.population[epoch])
        scale, overlap = population / contributors, law.hashes.overlap
        dummies, _ = law.noise.moments(contributors)
        real = received - law.buckets * dummies
        counts = np.asarray((found - dummies - overlap * real) / (1 - overlap), np.float64)
        noise = mean_variance(law, contributors, max(0.0, real))
        shares = np.clip(counts / contributors, 0.0, 1.0)
        silent = max(0, population - contributors) / max(1, population - 1) / contributors
        sampling = population**2 * float((shares * (1 - shares)).mean()) * silent
        deviation = math.sqrt(scale**2 * noise + sampling)
        return ItemEstimates(
            values=scale * counts,
            standard_deviation=deviation,
            half_width=NORMAL_95 * deviation,
            reports=received,
            population=population,
        )


def count_variance(law: BallsIntoBinsLaw, contributors: int, messages: float, held: float) -> float:
    """Variance of the count of an item, exactly.

    Of dummies in its bucket, of those elsewhere, as far as they are taken for real messages, and of
    the collisions of other messages, independent as each has a hash of its own.

    Args:
        law: of the job.
        contributors: how many there are.
        messages: real ones, M.
        held: how many of them are about the item.
    """
    overlap, (_, dummies) = law.hashes.overlap, law.noise.moments(contributors)
    elsewhere = overlap**2 / (1 - overlap) ** 2 * (law.buckets - 1) * dummies
    return dummies + elsewhere + (messages - held) * overlap / (1 - overlap)


def mean_variance(law: BallsIntoBinsLaw, contributors: int, messages: float) -> float:
    """The mean of `count_variance` over all items."""
    return count_variance(law, contributors, messages, messages / law.size)
