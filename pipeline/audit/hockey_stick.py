"""Lower confidence bounds on how well samples distinguish two neighbors.

A fair coin decides from which of two neighbors a trial is drawn. The observer of the trial guesses
the first neighbor (outcomes S) if a score is high, guesses the second neighbor (outcomes T) if the
score is low, and abstains otherwise. A claim of (epsilon, delta) holds for neighbors in either
order: P(S) <= e^epsilon Q(S) + delta and Q(T) <= e^epsilon P(T) + delta. Half the sum of both
inequalities says: the probability of a right guess is at most e^epsilon times the probability of a
wrong guess, plus delta.

Delta excuses some right guesses. Their number is bounded by a binomial distribution with
probability delta. Every other guess is right with a probability of at most e^epsilon / (1 +
e^epsilon), so the number of right guesses among the others is bounded by a binomial distribution,
too. If p is the lower bound of Clopper and Pearson for the probability of a right guess, the loss
is at least ln(p / (1 - p)). This bound is wrong with a probability of at most `false_alarm`, and
assumes only that trials are independent.

For small losses, this bound needs only about a quarter of the trials that two separate bounds, for
one event under each neighbor, would need. Scores and thresholds are chosen on training trials.

Reference: Clopper, Pearson, Biometrika 26, 1934.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.search import least_integer

Reports: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]
"""Observation of an epoch: messages and their multiplicities, in the order of messages."""
Observation: TypeAlias = tuple[Reports, ...]
"""Observation of a trial: the reports at each epoch."""

Seen = TypeVar("Seen")

# Number of the most frequent messages, which have weights of their own in scores.
_MOST_MESSAGES = 256
_MOST_THRESHOLDS = 500


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Observations of trials: `codes`, shape (trials, epochs), index the table of each epoch."""

    tables: tuple[tuple[Reports, ...], ...]
    codes: NDArray[np.intp]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Observations:
        """Collect observations by trial; epochs that faulty code omits have no reports."""
        tables: list[dict[Reports, int]] = [
            {} for _ in range(max(map(len, observations), default=0))
        ]
        codes = np.empty((len(observations), len(tables)), np.intp)
        for row, observation in enumerate(observations):
            for epoch, table in enumerate(tables):
                reports = observation[epoch] if epoch < len(observation) else ()
                codes[row, epoch] = table.setdefault(reports, len(table))
        return cls(tuple(map(tuple, tables)), codes)

    @classmethod
    def joined(cls, parts: Sequence[Observations]) -> Observations:
        tables: list[dict[Reports, int]] = [{} for _ in parts[0].tables]
        codes = []
        for part in parts:
            codes.append(np.empty_like(part.codes))
            for epoch, (table, seen) in enumerate(zip(tables, part.tables, strict=True)):
                places = np.array([table.setdefault(each, len(table)) for each in seen], np.intp)
                codes[-1][:, epoch] = places[part.codes[:, epoch]]
        return cls(tuple(map(tuple, tables)), np.concatenate(codes))

    @property
    def trials(self) -> int:
        return len(self.codes)

    def times(self, epoch: int) -> list[tuple[Reports, int]]:
        """Return an epoch's observations (epochs from 0), each with its number of trials."""
        table = self.tables[epoch]
        times = np.bincount(self.codes[:, epoch], minlength=len(table)).tolist()
        return [(seen, often) for seen, often in zip(table, times, strict=True) if often]

    def halves(self) -> tuple[Observations, Observations]:
        middle = self.trials // 2
        first, second = self.codes[:middle], self.codes[middle:]
        return Observations(self.tables, first), Observations(self.tables, second)


Score: TypeAlias = Callable[[Observations], NDArray[np.float64]]
"""Function that scores each trial; larger scores favor the first neighbor."""
_Value: TypeAlias = Callable[[int, Reports], float]
"""Function for the contribution of an epoch's observation to a score."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Rule that guesses one neighbor for scores from `high` on, the other for scores up to `low`.

    `bound` is the lower bound on the loss, from training trials.
    """

    score: Score
    low: float
    high: float
    bound: float

    def count(self, one: Observations, other: Observations) -> tuple[int, int]:
        """Return how many guesses are right and how many are wrong, on trials of both neighbors."""
        ones, others = self.score(one), self.score(other)
        right = np.count_nonzero(ones >= self.high) + np.count_nonzero(others <= self.low)
        wrong = np.count_nonzero(others >= self.high) + np.count_nonzero(ones <= self.low)
        return int(right), int(wrong)


def loss_bound(right: int, wrong: int, trials: int, delta: float, false_alarm: float) -> float:
    """Return a lower bound on epsilon at `delta` from the counts of right and wrong guesses.

    The bound is 0 if no loss is shown, and wrong with a probability of at most `false_alarm`.
    `trials` includes abstentions; a fair coin chose the neighbor of each trial.
    """
    bounds = _loss_bounds(np.array([right]), np.array([wrong]), trials, delta, false_alarm)
    return max(0.0, float(bounds[0]))


def _loss_bounds(
    right: NDArray[np.int64],
    wrong: NDArray[np.int64],
    trials: int,
    delta: float,
    false_alarm: float,
) -> NDArray[np.float64]:
    share = false_alarm / 2 if delta else false_alarm
    left = right - _most_excused(trials, delta, share)
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = stats.beta.ppf(share, left, wrong + 1)
        bounds: NDArray[np.float64] = np.where(left > 0, np.log(lower / (1 - lower)), -math.inf)
    return bounds


@lru_cache(maxsize=64)
def _most_excused(trials: int, delta: float, false_alarm: float) -> int:
    """Return a bound on excused guesses, exceeded with probability at most `false_alarm`."""
    return least_integer(
        lambda excused: bool(stats.binom.sf(excused, trials, min(delta, 1.0)) <= false_alarm),
        -1,
        trials,
    )


def share_of_guesses_for(
    epsilon: float, delta: float, factor: float, trials: int, false_alarm: float, power: float
) -> float | None:
    """Return the fraction of trials that must yield a guess to show a loss above the claim.

    Guesses are assumed to be right as often as a loss of `factor` times epsilon allows. `trials`
    counts trials of both neighbors, and `power` is the minimum probability that the bound exceeds
    the claim. Returns None if no number of guesses suffices.
    """
    kept = 1 / (1 + math.exp(-factor * epsilon))
    miss = (1 - power) / 2

    def shown(guesses: int) -> bool:
        right = int(stats.binom.ppf(miss, guesses, kept))
        return loss_bound(right, guesses - right, trials, delta, false_alarm) > epsilon

    if epsilon <= 0 or not shown(trials):
        return None
    fewest = least_integer(shown, 0, trials)
    # This fraction yields at least `fewest` guesses, except with probability `miss`.
    return float(min(1.0, stats.beta.isf(miss, fewest, trials - fewest + 1)))


def choose_guess(one: Observations, other: Observations, delta: float, false_alarm: float) -> Guess:
    """Learn scores from half of the training trials; choose the guess with the largest bound."""
    (learned, tried), (other_learned, other_tried) = one.halves(), other.halves()
    guesses = [
        _best_thresholds(learn(learned, other_learned), tried, other_tried, delta, false_alarm)
        for learn in (_by_observation, _by_epoch, _by_messages, _by_sums)
    ]
    return max(guesses, key=lambda guess: guess.bound)


def _best_thresholds(
    score: Score, one: Observations, other: Observations, delta: float, false_alarm: float
) -> Guess:
    ones, others = np.sort(score(one)), np.sort(score(other))
    thresholds = np.unique(np.concatenate([ones, others]))
    if len(thresholds) > _MOST_THRESHOLDS:
        places = np.linspace(0, 1, _MOST_THRESHOLDS)
        thresholds = np.quantile(thresholds, places, method="nearest")
    thresholds = np.concatenate([[-math.inf], thresholds, [math.inf]])
    # Right and wrong guesses at or above each threshold, and at or below each threshold.
    above, wrongly_above = (
        len(each) - np.searchsorted(each, thresholds, "left") for each in (ones, others)
    )
    below, wrongly_below = (np.searchsorted(each, thresholds, "right") for each in (others, ones))
    trials, never_low, never_high = len(ones) + len(others), 0, len(thresholds) - 1
    low, high, bound = never_low, never_high, -math.inf
    # Optimize the two thresholds alternately: they are nearly independent.
    for _ in range(2):
        bounds = _loss_bounds(
            above + below[low], wrongly_above + wrongly_below[low], trials, delta, false_alarm
        )
        bounds[: low + 1] = -math.inf
        high = int(np.argmax(bounds))
        bounds = _loss_bounds(
            above[high] + below, wrongly_above[high] + wrongly_below, trials, delta, false_alarm
        )
        bounds[high:] = -math.inf
        low = int(np.argmax(bounds))
        bound = float(bounds[low])
    return Guess(score, float(thresholds[low]), float(thresholds[high]), bound)


def _by_observation(one: Observations, other: Observations) -> Score:
    """Score by the log ratio of the frequencies of whole observations."""
    epochs = max(len(one.tables), len(other.tables))
    places: list[dict[Reports, int]] = [{} for _ in range(epochs)]
    for observations in (one, other):
        for known, table in zip(places, observations.tables, strict=False):
            for seen in table:
                known.setdefault(seen, len(known))

    def keys(observations: Observations) -> list[bytes]:
        found = np.full((observations.trials, epochs), -1, np.int32)
        for epoch, (known, table) in enumerate(zip(places, observations.tables, strict=False)):
            codes = np.array([known.get(seen, -1) for seen in table], np.int32)
            found[:, epoch] = codes[observations.codes[:, epoch]]
        return [row.tobytes() for row in found]

    ratios = _log_ratios(Counter(keys(one)), Counter(keys(other)), one.trials, other.trials)
    return lambda observations: np.array(
        [ratios.get(key, 0.0) for key in keys(observations)], np.float64
    )


def _by_epoch(one: Observations, other: Observations) -> Score:
    epochs = min(len(one.tables), len(other.tables))
    ratios = [
        _log_ratios(
            Counter(dict(one.times(epoch))),
            Counter(dict(other.times(epoch))),
            one.trials,
            other.trials,
        )
        for epoch in range(epochs)
    ]

    def value(epoch: int, seen: Reports) -> float:
        return ratios[epoch].get(seen, 0.0) if epoch < epochs else 0.0

    return _added_up(value)


def _by_messages(one: Observations, other: Observations) -> Score:
    """Score by a sum of message counts, weighted by how well each message distinguishes."""
    sums = _MessageSums.of(one), _MessageSums.of(other)
    often = {
        message: sum(each.first.get(message, 0.0) for each in sums)
        for message in sums[0].first.keys() | sums[1].first.keys()
    }
    # The total number of messages at an epoch always has a weight.
    frequent = nlargest(
        _MOST_MESSAGES, (message for message in often if message[1]), key=often.__getitem__
    )
    looked_at = [*frequent, *(message for message in often if not message[1])]
    weights = {message: _weight(*(each.moments(message) for each in sums)) for message in looked_at}

    def value(epoch: int, seen: Reports) -> float:
        return math.fsum(
            (weights.get((epoch, message), 0.0) + weights.get((epoch, ()), 0.0)) * times
            for message, times in seen
        )

    return _added_up(value)


_Message: TypeAlias = tuple[int, tuple[int, ...]]
"""An epoch, and a message observed at that epoch."""


@dataclass(frozen=True, slots=True)
class _MessageSums:
    """Message counts and their squares, summed over trials; () stands for all messages together."""

    trials: int
    first: dict[_Message, float]
    second: dict[_Message, float]

    @classmethod
    def of(cls, observations: Observations) -> _MessageSums:
        first: defaultdict[_Message, float] = defaultdict(float)
        second: defaultdict[_Message, float] = defaultdict(float)
        for epoch in range(len(observations.tables)):
            for seen, often in observations.times(epoch):
                for message, times in (*seen, ((), sum(times for _, times in seen))):
                    first[epoch, message] += often * times
                    second[epoch, message] += often * times**2
        return cls(observations.trials, dict(first), dict(second))

    def moments(self, message: _Message) -> tuple[float, float]:
        mean = self.first.get(message, 0.0) / max(self.trials, 1)
        return mean, self.second.get(message, 0.0) / max(self.trials, 1) - mean**2


def _by_sums(one: Observations, other: Observations) -> Score:
    """Score by a weighted sum of each message component's total over the messages of an epoch."""
    width = max(
        (
            len(message)
            for observations in (one, other)
            for table in observations.tables
            for seen in table
            for message, _ in seen
        ),
        default=1,
    )

    def sums(seen: Reports) -> NDArray[np.float64]:
        found = np.zeros(width)
        for message, times in seen:
            found[: len(message)] += np.array(message[:width], np.float64) * times
        return found

    def moments(
        observations: Observations, epoch: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if epoch >= len(observations.tables):
            return np.zeros(width), np.zeros(width)
        seen = observations.times(epoch)
        rows = np.array([sums(each) for each, _ in seen])
        often = np.array([times for _, times in seen], np.float64)
        mean = np.average(rows, axis=0, weights=often)
        return mean, np.average((rows - mean) ** 2, axis=0, weights=often)

    weights = [
        _weight(moments(one, epoch), moments(other, epoch))
        for epoch in range(max(len(one.tables), len(other.tables)))
    ]

    def value(epoch: int, seen: Reports) -> float:
        return float(sums(seen) @ weights[epoch]) if epoch < len(weights) else 0.0

    return _added_up(value)


def _weight(one: tuple[Any, Any], other: tuple[Any, Any]) -> Any:
    """Return the weight of counts in a linear score, given their moments under both neighbors."""
    apart = one[0] - other[0]
    return apart / (one[1] + other[1] + 1e-9 + 1e-6 * apart**2)


def _added_up(value: _Value) -> Score:

    def score(observations: Observations) -> NDArray[np.float64]:
        total = np.zeros(observations.trials)
        for epoch, table in enumerate(observations.tables):
            values = np.array([value(epoch, seen) for seen in table], np.float64)
            total += values[observations.codes[:, epoch]]
        return total

    return score


def _log_ratios(
    ones: Counter[Seen], others: Counter[Seen], trials: int, other_trials: int
) -> dict[Seen, float]:
    return {
        seen: math.log((ones[seen] + 0.5) / (trials + 1))
        - math.log((others[seen] + 0.5) / (other_trials + 1))
        for seen in ones.keys() | others.keys()
    }
