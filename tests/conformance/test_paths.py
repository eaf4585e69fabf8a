"""Single devices and vectorized devices both follow the exact distribution."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import permutations
from typing import TypeAlias

import numpy as np
import pytest
from scipy import stats

from tests.conformance.cases import (
    FALSE_ALARM,
    SUMMED,
    Case,
    MessageArray,
    Report,
    Stream,
    Values,
    View,
    every_sampled_case,
)

pytestmark = pytest.mark.slow

ALONE = 1_500
TOGETHER = 20_000
# Rarer outcomes are merged, because the chi-square approximation would not hold.
RARE = 20
# Number of views above which the common denominator of fractions has too many digits.
MANY = 10_000

# (epoch, report) -> mean and variance of its count over one observed group of devices.
Moments: TypeAlias = dict[tuple[int, Report], tuple[float, float]]


@every_sampled_case
def test_reports_of_a_single_device_follow_the_exact_distribution(case: Case) -> None:
    """Covers all reports over all epochs; distributions of other streams differ."""
    stream, other = max(
        permutations(case.streams, 2),
        key=lambda pair: variation(case.views[pair[0]], case.views[pair[1]]),
    )
    rng = case.generator(20)
    values = group(case, stream)
    seen = Counter(view_of(case.released(case.send(values, rng), rng)) for _ in range(ALONE))
    assert fit(seen, case.views[stream]) > FALSE_ALARM
    assert fit(seen, case.views[other]) < FALSE_ALARM


@every_sampled_case
def test_reports_of_vectorized_devices_follow_the_exact_distribution(case: Case) -> None:
    """Covers every message at every epoch; distributions of other streams differ."""
    if case in SUMMED:
        return  # A window with more devices has a different distribution.
    moments = {stream: moments_of(views) for stream, views in case.views.items()}
    stream, other = max(
        permutations(case.streams, 2), key=lambda pair: distance(moments[pair[0]], moments[pair[1]])
    )
    values = np.concatenate([group(case, stream)] * TOGETHER, axis=1)
    seen = Counter(
        (epoch, report)
        for epoch, words in enumerate(case.send(values, case.generator(21)))
        for report in map(tuple, words.tolist())
    )
    assert least_likely(seen, moments[stream]) > FALSE_ALARM
    assert least_likely(seen, moments[other]) < FALSE_ALARM


def group(case: Case, stream: Stream) -> Values:
    """Return the values of devices that are observed together, shape (epochs, devices)."""
    values = case.array_of(np.zeros((case.last_epoch, case.exact.devices), np.intp))
    values[:, 0] = stream
    return values


def view_of(reports: list[MessageArray]) -> View:
    return tuple(tuple(sorted(map(tuple, words.tolist()))) for words in reports)


def variation(one: Mapping[View, Fraction], other: Mapping[View, Fraction]) -> float:
    views = one.keys() | other.keys()
    return sum(abs(float(one.get(view, 0)) - float(other.get(view, 0))) for view in views) / 2


def fit(seen: Counter[View], views: Mapping[View, Fraction]) -> float:
    """Return the p-value of the observed views; 0 if impossible."""
    if not seen.keys() <= views.keys():
        return 0.0
    cells = [(0, 0.0)]
    for probability, view in sorted((probability, view) for view, probability in views.items()):
        times, mean = seen[view], float(probability) * seen.total()
        if cells[-1][1] < RARE:
            times, mean = times + cells[-1][0], mean + cells[-1][1]
            cells.pop()
        cells.append((times, mean))
    return float(stats.chisquare(*zip(*cells, strict=True), sum_check=False).pvalue)


def moments_of(views: Mapping[View, Fraction]) -> Moments:
    first: defaultdict[tuple[int, Report], Fraction] = defaultdict(Fraction)
    second: defaultdict[tuple[int, Report], Fraction] = defaultdict(Fraction)
    for view, probability in views.items():
        if len(views) > MANY:
            probability = Fraction(float(probability))
        for epoch, reports in enumerate(view):
            for report, times in Counter(reports).items():
                first[epoch, report] += times * probability
                second[epoch, report] += times * times * probability
    return {
        word: (float(first[word]), max(0.0, float(second[word] - first[word] ** 2)))
        for word in first
    }


def distance(one: Moments, other: Moments) -> float:
    """Return the largest difference between two means, in standard deviations."""
    return max(
        abs(mean - other.get(word, (0.0, 0.0))[0]) / math.sqrt(variance)
        for word, (mean, variance) in one.items()
        if variance
    )


def least_likely(seen: Counter[tuple[int, Report]], moments: Moments) -> float:
    """Return the smallest p-value over all messages and epochs; 0 if one is impossible."""
    if not seen.keys() <= moments.keys():
        return 0.0
    likelihoods = []
    for word, (mean, variance) in moments.items():
        if TOGETHER * mean < RARE and variance <= mean:
            # The normal approximation does not apply to rare messages.
            likelihoods.append(
                min(1.0, 2 * float(stats.poisson.sf(seen[word] - 1, TOGETHER * mean)))
            )
            continue
        error = seen[word] - TOGETHER * mean
        deviation = math.sqrt(TOGETHER * variance)
        # A report sent with certainty has no variance.
        likely = 2 * stats.norm.sf(abs(error) / deviation) if deviation else float(abs(error) < 0.5)
        likelihoods.append(float(likely))
    return min(likelihoods)
