"""Lower bounds, with confidence, of how well two neighbours can be told apart from samples.

For a claim of (epsilon, delta) and any set S of views, P(S) <= e^epsilon Q(S) + delta. A set is
chosen on one half of the trials, among those where a score is at least a threshold, and judged on
the other half, which has no part in the choice. With p a lower bound of P(S) and q an upper one of
Q(S), each wrong with half of `false_alarm` (Clopper and Pearson, Biometrika 26, 1934), the loss is
at least ln((p - delta) / q): a lower bound that is wrong with a probability of at most
`false_alarm`, and needs no assumption but that trials are independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Reports: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]
"""What is seen at an epoch: words, each with how often it is there, in their order."""
Sight: TypeAlias = tuple[Reports, ...]
"""What is seen in a trial: epoch by epoch."""
Score: TypeAlias = Callable[[Sequence[Sight]], NDArray[np.float64]]
"""Of each sight, the larger the more it speaks for the first neighbour."""

# Of words that scores look at one by one: the most frequent ones.
_MOST_WORDS = 256


@dataclass(frozen=True, slots=True)
class Event:
    """The sights whose score is at least a threshold."""

    score: Score
    threshold: float
    bound: float

    def count(self, sights: Sequence[Sight]) -> int:
        """How many of them are in it."""
        return int(np.count_nonzero(self.score(sights) >= self.threshold))


def loss_bound(
    hits: int, trials: int, others: int, other_trials: int, delta: float, false_alarm: float
) -> float:
    """The least epsilon with this delta, of an event that so many trials of each neighbour hit.

    It is 0 where nothing follows, and wrong with a probability of at most `false_alarm`.
    """
    bounds = _loss_bounds(
        np.array([hits]), trials, np.array([others]), other_trials, delta, false_alarm
    )
    return max(0.0, float(bounds[0]))


def _loss_bounds(
    hits: NDArray[np.int64],
    trials: int,
    others: NDArray[np.int64],
    other_trials: int,
    delta: float,
    false_alarm: float,
) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        lower = stats.beta.ppf(false_alarm / 2, hits, trials - hits + 1)
        upper = stats.beta.isf(false_alarm / 2, others + 1, other_trials - others)
        lower = np.where(hits > 0, lower, 0.0) - delta
        upper = np.where(others < other_trials, upper, 1.0)
        bounds: NDArray[np.float64] = np.where(lower > 0, np.log(lower / upper), -math.inf)
    return bounds


def choose_event(
    one: Sequence[Sight], other: Sequence[Sight], delta: float, false_alarm: float
) -> Event:
    """The event with the largest loss on training trials, by scores learnt on half of them."""
    halves = len(one) // 2, len(other) // 2
    learnt, tried = (one[: halves[0]], other[: halves[1]]), (one[halves[0] :], other[halves[1] :])
    events = [
        _best_threshold(learn(*learnt), *tried, delta, false_alarm)
        for learn in (_by_sight, _by_epoch, _by_words, _by_sums)
    ]
    return max(events, key=lambda event: event.bound)


def _best_threshold(
    score: Score, one: Sequence[Sight], other: Sequence[Sight], delta: float, false_alarm: float
) -> Event:
    ones, others = np.sort(score(one)), np.sort(score(other))
    thresholds = np.unique(np.concatenate([ones, others]))
    if len(thresholds) > 500:
        thresholds = np.quantile(thresholds, np.linspace(0, 1, 500), method="nearest")
    bounds = _loss_bounds(
        len(ones) - np.searchsorted(ones, thresholds),
        len(ones),
        len(others) - np.searchsorted(others, thresholds),
        len(others),
        delta,
        false_alarm,
    )
    best = int(np.argmax(bounds))
    return Event(score, float(thresholds[best]), float(bounds[best]))


def _by_sight(one: Sequence[Sight], other: Sequence[Sight]) -> Score:
    """How much more often all that is seen was there."""
    table = _log_ratios(Counter(one), Counter(other), len(one), len(other))
    return lambda sights: np.array([table.get(sight, 0.0) for sight in sights])


def _by_epoch(one: Sequence[Sight], other: Sequence[Sight]) -> Score:
    """The same epoch by epoch, as if epochs were independent."""
    tables = [
        _log_ratios(
            Counter(sight[epoch] for sight in one if epoch < len(sight)),
            Counter(sight[epoch] for sight in other if epoch < len(sight)),
            len(one),
            len(other),
        )
        for epoch in range(_longest(one, other))
    ]
    return lambda sights: np.array(
        [
            sum(table.get(seen, 0.0) for table, seen in zip(tables, sight, strict=False))
            for sight in sights
        ]
    )


def _by_words(one: Sequence[Sight], other: Sequence[Sight]) -> Score:
    """A sum over words of how often each is there, weighted by what that says of the neighbour."""
    frequent: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for sight in (*one, *other):
        for epoch, reports in enumerate(sight):
            frequent.update((epoch, word) for word, _ in reports)
    places = {word: place for place, (word, _) in enumerate(frequent.most_common(_MOST_WORDS))}

    def matrix(sights: Sequence[Sight]) -> NDArray[np.float64]:
        found = np.zeros((len(sights), len(places) + 1))
        for row, sight in enumerate(sights):
            for epoch, reports in enumerate(sight):
                for word, times in reports:
                    place = places.get((epoch, word))
                    if place is not None:
                        found[row, place] = times
                    found[row, -1] += times
        return found

    return _linear(matrix, one, other)


def _by_sums(one: Sequence[Sight], other: Sequence[Sight]) -> Score:
    """The same of what the numbers of words add up to at each epoch, number by number."""
    width = max(
        (len(word) for sight in (*one, *other) for reports in sight for word, _ in reports),
        default=1,
    )

    epochs = _longest(one, other)

    def matrix(sights: Sequence[Sight]) -> NDArray[np.float64]:
        found = np.zeros((len(sights), epochs, width))
        for row, sight in enumerate(sights):
            for epoch, reports in enumerate(sight[:epochs]):
                for word, times in reports:
                    found[row, epoch, : len(word)] += np.array(word[:width], np.float64) * times
        return found.reshape(len(sights), -1)

    return _linear(matrix, one, other)


def _longest(one: Sequence[Sight], other: Sequence[Sight]) -> int:
    """How many epochs the longest sight has: code that is broken may lose some."""
    return max(map(len, (*one, *other)))


def _linear(
    matrix: Callable[[Sequence[Sight]], NDArray[np.float64]],
    one: Sequence[Sight],
    other: Sequence[Sight],
) -> Score:
    ones, others = matrix(one), matrix(other)
    variance = ones.var(axis=0) + others.var(axis=0)
    apart = ones.mean(axis=0) - others.mean(axis=0)
    weights = apart / (variance + 1e-9 + 1e-6 * apart**2)
    return lambda sights: matrix(sights) @ weights


def _log_ratios(
    ones: Counter[object], others: Counter[object], trials: int, other_trials: int
) -> dict[object, float]:
    return {
        seen: math.log((ones[seen] + 0.5) / (trials + 1))
        - math.log((others[seen] + 0.5) / (other_trials + 1))
        for seen in ones.keys() | others.keys()
    }
