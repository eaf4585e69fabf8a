"""Balls into bins, server side: words counted, and the count of every item of an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.bucket_counts import bucket_counts
from aggregators.cell_window import FOUND
from aggregators.found_items import FoundItems
from aggregators.item_counts import item_estimates
from aggregators.item_estimates import ItemEstimates
from aggregators.item_words import collisions_variance, dummies_variance, without_others
from aggregators.word_aggregator import WordAggregator
from randomizers.balls_into_bins import BallsIntoBinsLaw
from randomizers.item_domains import MOST_PUBLISHED


class BallsIntoBinsAggregator(WordAggregator[BallsIntoBinsLaw]):
    """Counts of words; equal whatever the order, and however they were split and merged.

    >>> from randomizers.balls_into_bins.calibration import calibrate
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

    def _words(self, epoch: int) -> int:
        return self.law.hashes.words

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates | FoundItems | None:
        """How many users hold each item at an epoch; None if its window was withheld.

        Of a domain too large to be published, the items most held. The standard deviation is that
        of a mean variance over the items.

        Args:
            epoch: 1 to the last one.
            attendance: head counts.
        """
        received, law = self._received.of(epoch), self.law
        matching = bucket_counts(law.hashes, received.words, received.counts, law.size)
        found = self._estimates(epoch, matching, attendance)
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def _estimates(
        self, epoch: int, found: NDArray[np.int64], attendance: Attendance
    ) -> ItemEstimates | None:
        law, received = self.law, self._received.of(epoch).messages
        contributors = int(attendance.contributors[epoch])
        if contributors < law.noise.minimum:
            return None
        dummies, _ = law.noise.moments(contributors)
        counts, real = without_others(found, received, law.hashes, dummies)
        noise = mean_variance(law, contributors, max(0.0, real))
        return item_estimates(counts, noise, np.mean, received, epoch, attendance)


def mean_variance(law: BallsIntoBinsLaw, contributors: int, messages: float) -> float:
    """Variance of the count of an item, exactly; its mean over all items.

    Of dummies in its bucket, of those elsewhere, as far as they are taken for real messages, and of
    the collisions of other messages, independent as each has a hash of its own.

    Args:
        law: of the job.
        contributors: how many there are.
        messages: real ones.
    """
    _, dummies = law.noise.moments(contributors)
    collisions = collisions_variance(law.hashes, law.size, messages)
    return dummies_variance(law.hashes, dummies) + collisions
