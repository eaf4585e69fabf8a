"""Effect of message deletion on crowds of different sizes, predicted before any data exist."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpstream.pipeline.protocols.crowd_variants import CrowdsForecast
from dpstream.randomizers.crowds import CrowdCounts, CrowdsLaw
from dpstream.randomizers.crowds.calibration import most_lost

_TIMES = (4.0, 2.0, 1.0, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class CrowdSize:
    """Prediction for a crowd of `users` users who all report.

    Attributes:
        lost: Mean share of the crowd's messages that are deleted.
        rmse: RMSE for an item that few users in the crowd have, in users.
        suppressed: Probability that the crowd is suppressed at an epoch.
    """

    users: int
    lost: float
    rmse: float
    suppressed: float


@dataclass(frozen=True, slots=True)
class CrowdsPlan:
    """Guarantee and accuracy of a job with crowds, in each of which random messages are deleted.

    Attributes:
        epsilon: Epsilon for the sizes of all crowds at an epoch.
        delta: Delta for the sizes of all crowds at all epochs together.
        contents_epsilon: Epsilon for a user's messages; neighbors can also differ in the crowd.
        shift: Mean number of deleted messages per crowd.
        deviation: Standard deviation of the size of a crowd, in users.
        most_lost: Maximum number of messages that any crowd loses, with probability 1 - delta.
        sizes: Predictions for crowds of equal size, for a larger crowd, and for a smaller crowd.
    """

    crowds: int
    epsilon: float
    delta: float
    contents_epsilon: float
    shift: int
    deviation: float
    most_lost: float
    sizes: tuple[CrowdSize, ...]


def plan_crowds(law: CrowdsLaw, forecast: object, users: int) -> CrowdsPlan:
    assert isinstance(forecast, CrowdsForecast)
    counts, equal = law.counts, max(1, users // law.crowds)
    numbers = sorted({min(users, max(1, int(equal * times))) for times in _TIMES}, reverse=True)
    return CrowdsPlan(
        crowds=law.crowds,
        epsilon=counts.epsilon,
        delta=counts.delta,
        contents_epsilon=law.contents.epsilon,
        shift=counts.shift,
        deviation=math.sqrt(counts.variance),
        most_lost=most_lost(counts, law.crowds),
        sizes=tuple(_size(law, forecast, number) for number in numbers),
    )


def _size(law: CrowdsLaw, forecast: CrowdsForecast, users: int) -> CrowdSize:
    return CrowdSize(
        users=users,
        lost=min(1.0, law.counts.shift / users),
        rmse=float(np.sqrt(np.square(forecast.of_crowd(users)).mean())),
        suppressed=probability_below(law.counts, law.minimum + law.counts.shift - users),
    )


def probability_below(counts: CrowdCounts, bound: int) -> float:
    """Return P(Z < b) for the noise Z of a crowd count and integer b.

    This is decay^(1 - b) / (1 + decay) for b up to 1, and 1 - decay^b / (1 + decay) above.

    >>> half = CrowdCounts((1, 2), 1, 0.1)
    >>> [round(probability_below(half, bound), 4) for bound in (-1, 0, 1, 2)]
    [0.1667, 0.3333, 0.6667, 0.8333]
    """
    decay = float(counts.ratio)
    if bound <= 0:
        return decay ** (1 - bound) / (1 + decay)
    return 1 - decay**bound / (1 + decay)
