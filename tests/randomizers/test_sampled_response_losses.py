"""Test the loss of sampled_response, also of users whose values depend on earlier answers.

Losses are enumerated in rational arithmetic from phases and from the distribution of the words,
which is computed here from the definition, not from the product's mechanism.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import TypeAlias

import pytest

from dpstream.randomizers.sampled_response import (
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.calibration import calibrate

Stream: TypeAlias = tuple[int, ...]
# Pairs of epoch and word, in the order in which they are sent.
View: TypeAlias = tuple[tuple[int, int], ...]
Views: TypeAlias = Mapping[View, Fraction]


def law_of(epsilon: float, last_epoch: int, reports: int) -> SampledResponseLaw:
    return calibrate(SampledResponseParameters(epsilon, reports), last_epoch)


def joint(epsilon: float, reports: int) -> list[Fraction]:
    """Return the probability of each pattern of flips, by its number of flips.

    Patterns with at most tau flips weigh e^epsilon, all others 1. Of all tau, the one whose words
    agree most often with the values.
    """

    def pattern(tau: int) -> list[Fraction]:
        weights = [Fraction(math.exp(epsilon) if d <= tau else 1) for d in range(reports + 1)]
        total = sum(math.comb(reports, d) * weight for d, weight in enumerate(weights))
        return [weight / total for weight in weights]

    def agreement(pattern: list[Fraction]) -> Fraction:
        counts = (math.comb(reports, d) * (reports - d) for d in range(reports + 1))
        return sum((count * each for count, each in zip(counts, pattern, strict=True)), Fraction())

    return max(map(pattern, range(reports)), key=agreement)


def asked(phase: int, last_epoch: int, reports: int) -> list[int]:
    return sorted((phase + i * last_epoch // reports) % last_epoch for i in range(reports))


def loss(views: Callable[[Stream], Views], last_epoch: int) -> float:
    """Return the largest log ratio of a view's probabilities under any two streams."""
    every = [views(stream) for stream in product((0, 1), repeat=last_epoch)]
    shown = {view for each in every for view in each}
    least = [min(each.get(view, Fraction()) for each in every) for view in shown]
    most = [max(each.get(view, Fraction()) for each in every) for view in shown]
    if min(least) == 0:
        return math.inf
    return math.log(max(high / low for high, low in zip(most, least, strict=True)))


def mixed(outcomes: Iterator[tuple[View, Fraction]]) -> Views:
    total: defaultdict[View, Fraction] = defaultdict(Fraction)
    for view, probability in outcomes:
        total[view] += probability
    assert sum(total.values()) == 1
    return total


def words(
    stream: Stream, epochs: list[int], flips: list[Fraction], chance: Fraction
) -> Iterator[tuple[View, Fraction]]:
    for pattern in product((0, 1), repeat=len(epochs)):
        view = tuple((e, stream[e] ^ flip) for e, flip in zip(epochs, pattern, strict=True))
        yield view, chance * flips[sum(pattern)]


def correct(stream: Stream, epsilon: float, reports: int) -> Views:
    last_epoch, flips = len(stream), joint(epsilon, reports)
    return mixed(
        each
        for phase in range(last_epoch)
        for each in words(stream, asked(phase, last_epoch, reports), flips, Fraction(1, last_epoch))
    )


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("last_epoch", [3, 4])
def test_correct_distribution_loses_epsilon_and_matches_the_mechanism(
    epsilon: float, last_epoch: int, reports: int
) -> None:
    found = loss(lambda stream: correct(stream, epsilon, reports), last_epoch)
    assert found == pytest.approx(epsilon, abs=1e-12)
    law = law_of(epsilon, last_epoch, reports)
    for flips, probability in enumerate(joint(epsilon, reports)):
        assert float(law.flips.probability(flips)) == pytest.approx(float(probability), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("reports", [2, 3])
def test_users_whose_values_depend_on_all_earlier_answers_lose_epsilon(
    epsilon: float, reports: int
) -> None:
    """All strategies: a first value, and each further one as a function of the words before."""
    flips = joint(epsilon, reports)
    histories = [word for n in range(reports) for word in product((0, 1), repeat=n)]
    outcomes = []
    for choices in product((0, 1), repeat=len(histories)):
        value = dict(zip(histories, choices, strict=True))
        outcomes.append(
            {
                seen: flips[sum(value[seen[:n]] != word for n, word in enumerate(seen))]
                for seen in product((0, 1), repeat=reports)
            }
        )
    assert len(outcomes) == 2 ** (2**reports - 1)
    ratios = [
        max(each[seen] for each in outcomes) / min(each[seen] for each in outcomes)
        for seen in outcomes[0]
    ]
    assert all(sum(each.values()) == 1 for each in outcomes)
    assert math.log(max(ratios)) == pytest.approx(epsilon, abs=1e-12)


# Variants that lose more.


def independent(stream: Stream, kept: Fraction) -> Views:
    """Return the views of two independent words, each equal to its value with probability kept."""
    last_epoch = len(stream)
    flips = [kept * kept, kept * (1 - kept), (1 - kept) ** 2]
    return mixed(
        each
        for phase in range(last_epoch)
        for each in words(stream, asked(phase, last_epoch, 2), flips, Fraction(1, last_epoch))
    )


# Variants that count wrong.


# Exact moments of the estimator, over all dealt phases and all flips.


def arrangements(cards: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not cards:
        yield ()
    for card in set(cards):
        place = cards.index(card)
        for rest in arrangements(cards[:place] + cards[place + 1 :]):
            yield card, *rest
