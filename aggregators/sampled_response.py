"""Estimate the users with value 1 from the answers of a random sample of them at every epoch."""

from __future__ import annotations

import math
from collections import deque

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.aggregators.estimate import NORMAL_95, Estimate, Participation, Published


class SampledResponseAggregator(EpochResponsesAggregator):
    """Count zeros and ones; each epoch is estimated from its own answers."""

    def estimate(self, epoch: int, participation: Participation) -> Estimate | None:
        """Estimate the number of enrolled users with value 1, or None if no answers arrived.

        Those who answer are assumed to be a simple random sample of the enrolled users: absence
        must not depend on values. The standard error is that of the flips and of the sample, from a
        finite population. The interval is Wilson's, with the size of a sample that has the same
        variance; it holds for few answers, and for shares near 0 and 1.
        """
        counts = self._counts.get(epoch)
        if counts is None:
            return None
        ones, received = int(counts[1]), int(counts.sum())
        population, gap = max(1, int(participation.population[epoch])), self.law.c_gap
        share = ones / received
        known = min(max(share, (1 - gap) / 2), (1 + gap) / 2)
        spread = max(0.0, 1 / received - 1 / population) * known * (1 - known)
        flips = (1 - gap**2) / 4 / population
        unbiased = received / max(1, received - 1)
        sample = known * (1 - known) / (spread + flips)
        middle = (share + NORMAL_95**2 / 2 / sample) / (1 + NORMAL_95**2 / sample)
        half_width = (
            NORMAL_95
            * math.sqrt(share * (1 - share) / sample + (NORMAL_95 / 2 / sample) ** 2)
            / (1 + NORMAL_95**2 / sample)
        )

        def users(ones: float) -> float:
            return population * ((2 * ones - 1) / gap + 1) / 2

        return Estimate(
            users(share),
            population / gap * math.sqrt(unbiased * spread + flips),
            users(middle - half_width),
            users(middle + half_width),
            received,
            population,
        )


class SampledChanges:
    """Upper bounds on the errors of changes, for two samples without common users.

    The samples exclude each other, so their errors are negatively correlated where values persist;
    the bound is attained if all of them do. See `ChangeErrors`.
    """

    def __init__(self, lag: int) -> None:
        # Standard errors of recent epochs, and standard deviations of a value between users.
        self._before: deque[tuple[float, float] | None] = deque(maxlen=lag + 1)

    def next(self, published: Published | None, population: int) -> float | None:
        estimate = None if published is None else published.headline
        now = None
        if estimate and estimate.value is not None and estimate.standard_error is not None:
            share = min(max(estimate.value / max(1, population), 0.0), 1.0)
            now = estimate.standard_error, math.sqrt(share * (1 - share))
        self._before.append(now)
        before = self._before[0]
        if len(self._before) < (self._before.maxlen or 0) or before is None or now is None:
            return None
        common = 2 * population**2 / max(1, population - 1) * before[1] * now[1]
        return math.sqrt(before[0] ** 2 + now[0] ** 2 + common)
