"""Variants of sampled_response that are wrong, and what shows it: a loss, a bias, or no coverage.

Losses are enumerated in rational arithmetic from phases and from the distribution of the words,
which is computed here from the definition, not from the product's mechanism.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import SampledResponseAggregator
from dpstream.aggregators.estimate import Estimate, Participation
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.sampled_response import (
    SampledResponse,
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


def phase_at_first_change(stream: Stream, epsilon: float) -> Views:
    phase = next((epoch for epoch, value in enumerate(stream) if value), 0)
    return mixed(words(stream, [phase], joint(epsilon, 1), Fraction(1)))


def answer_moved_to_a_one(stream: Stream, epsilon: float) -> Views:
    third = Fraction(1, len(stream))
    return mixed(
        each
        for phase in range(len(stream))
        for moved in [next((e for e in range(phase, len(stream)) if stream[e]), phase)]
        for each in words(stream, [moved], joint(epsilon, 1), third)
    )


def silence_at_zero(stream: Stream, epsilon: float) -> Views:
    third = Fraction(1, len(stream))
    return mixed(
        each
        for phase in range(len(stream))
        for each in (
            words(stream, [phase], joint(epsilon, 1), third)
            if stream[phase]
            else iter([((), third)])
        )
    )


def phase_redrawn_after_restart(stream: Stream, epsilon: float) -> Views:
    """The device restarts after its answer, and answers again if the new phase is still ahead."""
    last_epoch, flips = len(stream), joint(epsilon, 1)
    return mixed(
        (first + second, one * other)
        for phase, again in product(range(last_epoch), repeat=2)
        for first, one in words(stream, [phase], flips, Fraction(1, last_epoch**2))
        for second, other in (
            words(stream, [again], flips, Fraction(1))
            if again > phase
            else iter([((), Fraction(1))])
        )
    )


def word_redrawn_for_a_resend(stream: Stream, epsilon: float) -> Views:
    last_epoch, flips = len(stream), joint(epsilon, 1)
    return mixed(
        (first + second, one * other)
        for phase in range(last_epoch)
        for first, one in words(stream, [phase], flips, Fraction(1, last_epoch))
        for second, other in words(stream, [phase], flips, Fraction(1))
    )


def independent(stream: Stream, kept: Fraction) -> Views:
    """Return the views of two independent words, each equal to its value with probability kept."""
    last_epoch = len(stream)
    flips = [kept * kept, kept * (1 - kept), (1 - kept) ** 2]
    return mixed(
        each
        for phase in range(last_epoch)
        for each in words(stream, asked(phase, last_epoch, 2), flips, Fraction(1, last_epoch))
    )


def two_words_with_all_of_epsilon(stream: Stream, epsilon: float) -> Views:
    return independent(stream, joint(epsilon, 1)[0])


def independent_words_of_the_joint_gap(stream: Stream, epsilon: float) -> Views:
    flips = joint(epsilon, 2)
    return independent(stream, flips[0] + flips[1])


@pytest.mark.parametrize("last_epoch", [3, 4])
@pytest.mark.parametrize(
    ("broken", "times"),
    [
        (phase_at_first_change, math.inf),
        (answer_moved_to_a_one, math.inf),
        (silence_at_zero, math.inf),
        (phase_redrawn_after_restart, 2.0),
        (word_redrawn_for_a_resend, 2.0),
        (two_words_with_all_of_epsilon, 2.0),
        (independent_words_of_the_joint_gap, 1.2402),
    ],
)
def test_incorrect_ways_to_draw_answers_lose_more_than_epsilon(
    broken: Callable[[Stream, float], Views], times: float, last_epoch: int
) -> None:
    found = loss(lambda stream: broken(stream, 1.0), last_epoch)
    assert found == pytest.approx(times, abs=5e-5)
    assert found > law_of(1.0, last_epoch, 1).flips.loss + 0.2


# Variants that count wrong.


class LateJoinersOnWhatIsLeft(SampledResponse):
    """Devices that enroll after epoch 5 of 10 draw among the epochs after it."""

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.unsignedinteger]]:
        drawn = super()._draw(count, rng)
        if self.population:
            drawn["phase"] = rng.integers(5, 10, count, np.uint32)
        return drawn


@pytest.mark.parametrize(
    ("devices_of", "expected"), [(SampledResponse, 2_000), (LateJoinersOnWhatIsLeft, 2_667)]
)
def test_users_who_join_late_draw_among_all_epochs(
    devices_of: type[SampledResponse], expected: int
) -> None:
    """Half of 4,000 users enroll before epoch 6 of 10, with value 1; the others have 0."""
    law, rng = law_of(4.0, 10, 1), seeded_generator(31)
    values = np.repeat([0, 1], 2_000)
    estimates = []
    for _ in range(30):
        devices, aggregator = devices_of(law), SampledResponseAggregator(law)
        devices.enroll(2_000, rng)
        for epoch in range(1, 6):
            devices.report(epoch, values[:2_000], None, rng)
        devices.enroll(2_000, rng)
        for epoch in range(6, 11):
            aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
            estimates.append(value_of(aggregator, epoch, 4_000))
    assert np.mean(estimates) == pytest.approx(expected, abs=60)


def value_of(aggregator: SampledResponseAggregator, epoch: int, population: int) -> float:
    last_epoch = aggregator.law.last_epoch
    estimate = aggregator.estimate(epoch, Participation.constant(last_epoch, population))
    assert isinstance(estimate, Estimate)
    assert estimate.value is not None
    return estimate.value


def test_absence_biases_estimates_that_are_scaled_by_the_planned_fraction() -> None:
    """With 30 % absent: N / n_e scales to all; T / r, or N of those present, to 70 % of them."""
    law, rng, users = law_of(4.0, 10, 1), seeded_generator(32), 5_000
    values = (np.arange(users) % 5 == 0).astype(np.int8)
    gap, right, by_share, of_present = law.c_gap, [], [], []
    for _ in range(20):
        devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        for epoch in range(1, 11):
            present = rng.random(users) < 0.7
            answers = devices.report(epoch, values, present, rng)
            aggregator.add(epoch, answers, None)
            right.append(value_of(aggregator, epoch, users))
            of_present.append(value_of(aggregator, epoch, int(np.count_nonzero(present))))
            ones = int(np.count_nonzero(answers))
            by_share.append(10 * (ones - len(answers) * (1 - gap) / 2) / gap)
    assert np.mean(right) == pytest.approx(1_000, abs=30)
    assert np.mean(by_share) == pytest.approx(700, abs=30)
    assert np.mean(of_present) == pytest.approx(700, abs=30)


class Unshuffled(SampledResponse):
    """Devices whose phases are dealt in the order of the roster."""

    def _draw(self, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.unsignedinteger]]:
        return {**super()._draw(count, rng), "phase": np.sort(super()._draw(count, rng)["phase"])}


@pytest.mark.parametrize("devices_of", [SampledResponse, Unshuffled])
def test_phases_are_independent_of_the_user_list(devices_of: type[SampledResponse]) -> None:
    """A roster sorted by value: phases in its order ask only ones at some epochs."""
    law, rng, users = law_of(4.0, 10, 1), seeded_generator(33), 4_000
    values = (np.arange(users) < 2_000).astype(np.int8)
    errors = []
    table = np.zeros((4, 10))
    for _ in range(20):
        devices, aggregator = devices_of(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        table += [np.bincount(part, minlength=10) for part in np.split(
            devices.state_arrays()["phase"].astype(np.int64), 4
        )]  # fmt: skip
        for epoch in range(1, 11):
            aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
            errors.append(value_of(aggregator, epoch, users) - 2_000)
    root = float(np.sqrt(np.mean(np.square(errors))))
    chi_square = float(((table - 2_000) ** 2 / 2_000).sum())
    # 27 degrees of freedom; less, because phases are dealt without replacement.
    independent = chi_square < 27 + 6 * math.sqrt(54)
    assert independent == (devices_of is SampledResponse)
    assert (root < 150) == independent


def test_interval_that_omits_the_sampling_error_covers_half_of_the_true_counts() -> None:
    """Users who are asked are a sample: at epsilon 4, that is most of the error."""
    law, rng, users = law_of(4.0, 12, 1), seeded_generator(34), 6_000
    values = (np.arange(users) < 1_800).astype(np.int8)
    covered = {True: 0, False: 0}
    for _ in range(40):
        devices, aggregator = SampledResponse(law), SampledResponseAggregator(law)
        devices.enroll(users, rng)
        for epoch in range(1, 13):
            answers = devices.report(epoch, values, None, rng)
            aggregator.add(epoch, answers, None)
            estimate = aggregator.estimate(epoch, Participation.constant(12, users))
            assert isinstance(estimate, Estimate)
            assert estimate.value is not None
            assert estimate.ci95_low is not None
            assert estimate.ci95_high is not None
            covered[True] += estimate.ci95_low <= 1_800 <= estimate.ci95_high
            flips = users * math.sqrt((law.c_gap**-2 - 1) / 4 / len(answers))
            covered[False] += abs(estimate.value - 1_800) <= 1.96 * flips
    assert covered[True] / 480 > 0.92
    assert covered[False] / 480 < 0.7


# Exact moments of the estimator, over all dealt phases and all flips.


@pytest.mark.parametrize(
    ("users", "last_epoch", "reports", "holders", "expected"),
    [(6, 3, 1, 3, 20.172125), (4, 4, 2, 1, 21.149928), (4, 4, 2, 2, 21.483261)],
)
def test_estimator_is_unbiased_over_all_possible_phases_and_flips(
    users: int, last_epoch: int, reports: int, holders: int, expected: float
) -> None:
    law = law_of(1.0, last_epoch, reports)
    flips, each = joint(1.0, reports), users // last_epoch
    values = (np.arange(users) < holders).astype(np.int8)
    dealt = set(arrangements(tuple(phase for phase in range(last_epoch) for _ in range(each))))
    assert len(dealt) == math.factorial(users) // math.factorial(each) ** last_epoch
    moments = np.zeros((last_epoch, 2))
    for phases in dealt:
        for epoch in range(1, last_epoch + 1):
            places = [asked(phase, last_epoch, reports) for phase in phases]
            answering = [user for user in range(users) if epoch - 1 in places[user]]
            for pattern in product((0, 1), repeat=len(answering)):
                state = np.zeros(users, np.uint8)
                chance = Fraction(1, len(dealt))
                for user, flip in zip(answering, pattern, strict=True):
                    state[user] = flip << places[user].index(epoch - 1)
                    others = range(reports)
                    chance *= sum(
                        (math.comb(reports - 1, d) * flips[d + flip] for d in others), Fraction()
                    )
                arrays: dict[str, NDArray[Any]] = {"phase": np.array(phases, np.uint32)}
                arrays["flips"] = state
                devices = SampledResponse.restore(law, arrays, epoch - 1)
                aggregator = SampledResponseAggregator(law)
                aggregator.add(
                    epoch, devices.report(epoch, values, None, seeded_generator(0)), None
                )
                estimate = value_of(aggregator, epoch, users)
                moments[epoch - 1] += np.array([estimate, estimate**2]) * float(chance)
    for mean, square in moments:
        assert mean == pytest.approx(holders)
        assert square - mean**2 == pytest.approx(expected, abs=5e-7)


def arrangements(cards: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not cards:
        yield ()
    for card in set(cards):
        place = cards.index(card)
        for rest in arrangements(cards[:place] + cards[place + 1 :]):
            yield card, *rest
