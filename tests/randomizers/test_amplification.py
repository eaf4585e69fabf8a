from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.accounting.amplification import (
    HiddenCoin,
    _clones,
    amplified_delta,
    amplified_epsilon,
    most_local_loss,
    of_any_randomizer,
    of_randomized_response,
    of_rappor,
)

LOSSES = (0.5, 1, 2, 4, 8)
GOLDEN = {
    10**4: (0.02040, 0.05301, 0.1551, 0.6009, 8),
    10**5: (0.00581, 0.01528, 0.04503, 0.1698, 2.189),
    10**6: (0.00162, 0.00433, 0.01296, 0.04931, 0.4445),
}
COINS = (
    HiddenCoin(1.0, 0.3),
    HiddenCoin(3.0, 0.9, 0.4),
    HiddenCoin(0.2, 0.999),
    HiddenCoin(6.0, 0.02, 0.8),
)


@pytest.mark.parametrize("contributors", GOLDEN)
def test_amplified_epsilon_matches_golden_values(contributors: int) -> None:
    found = [amplified_epsilon(of_any_randomizer(loss), contributors, 1e-6) for loss in LOSSES]
    for epsilon, golden in zip(found, GOLDEN[contributors], strict=True):
        # The absolute tolerance is half a unit of the last printed digit.
        assert epsilon == pytest.approx(golden, rel=1e-3, abs=5.1e-6)


@pytest.mark.parametrize(("epochs", "golden"), [(10, 0.0530), (100, 0.182), (365, 0.363)])
def test_amplified_epsilon_of_several_epochs_matches_golden_values(
    epochs: int, golden: float
) -> None:
    coin = of_any_randomizer(1.0)
    assert amplified_epsilon(coin, 10**5, 1e-6, epochs) == pytest.approx(golden, rel=2e-3)


@pytest.mark.parametrize("coin", COINS, ids=str)
@pytest.mark.parametrize("contributors", [1, 2, 7, 40])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_amplified_delta_matches_enumeration_of_outcomes(
    coin: HiddenCoin, contributors: int, share: float
) -> None:
    epsilon = share * coin.loss
    exact = divergence(*worlds(coin, contributors), epsilon)
    found = amplified_delta(coin, contributors, epsilon)
    # The tolerance covers rounding errors of the sum.
    assert exact - 1e-15 <= found <= exact * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("coin", COINS, ids=str)
def test_epsilon_of_two_epochs_matches_enumeration_of_outcomes(coin: HiddenCoin) -> None:
    contributors, delta = 12, 1e-3
    one, other = worlds(coin, contributors)
    once_again, otherwise = (
        {(a, b): world[a] * world[b] for a, b in product(world, repeat=2)} for world in (one, other)
    )
    epsilon = amplified_epsilon(coin, contributors, delta, epochs=2)
    assert divergence(once_again, otherwise, epsilon) <= delta
    if epsilon < 2 * coin.loss:
        assert divergence(once_again, otherwise, epsilon * 0.99) > delta


@pytest.mark.parametrize("loss", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("symbols", [2, 3, 4])
def test_shuffled_randomized_response_never_exceeds_its_bound(loss: float, symbols: int) -> None:
    largest = largest_divergence(partial(randomized_response, loss, symbols), symbols, others=3)
    for epsilon in (0.1 * loss, 0.5 * loss, 0.8 * loss):
        exact = largest(epsilon)
        assert 0 < exact <= amplified_delta(of_randomized_response(loss, symbols), 4, epsilon)
        assert exact <= amplified_delta(of_any_randomizer(loss), 4, epsilon)
        too_many = HiddenCoin(loss, min(0.99, 2 * of_randomized_response(loss, symbols).clone))
        if symbols == 2 and loss > 0.5:
            assert exact > amplified_delta(too_many, 4, epsilon)


@pytest.mark.parametrize("loss", [1.0, 4.0])
def test_shuffled_rappor_never_exceeds_its_bound(loss: float) -> None:
    largest = largest_divergence(partial(rappor, loss), 4, others=2)
    for epsilon in (0.1 * loss, 0.5 * loss, 0.8 * loss):
        exact = largest(epsilon)
        assert 0 < exact <= amplified_delta(of_rappor(loss), 3, epsilon)
        assert exact <= amplified_delta(of_any_randomizer(loss), 3, epsilon)


@pytest.mark.parametrize("loss", [0.25, 1.0, 4.0])
def test_distributions_of_neighboring_messages_differ_by_a_hidden_coin(loss: float) -> None:
    response, values = partial(randomized_response, loss, 5), 5
    assert_is_coin_of(of_randomized_response(loss, 5), response, values)
    assert_is_coin_of(of_rappor(loss), partial(rappor, loss), 3)


def test_grouping_of_clone_counts_never_understates_delta() -> None:
    """With a million contributors, the computation groups the possible numbers of clones."""
    coin, contributors = of_any_randomizer(0.01), 10**6
    clones = np.arange(985_000, 995_001)
    masses = stats.binom.pmf(clones, contributors - 1, coin.clone)
    assert masses.sum() == pytest.approx(1)
    epsilon = 5e-5
    heads, tails = coin.odds
    gain, cost = heads - math.exp(epsilon) * tails, math.exp(epsilon) * heads - tails
    first = np.floor((clones + 1) * (cost / (gain + cost))) + 1
    exact = masses @ (
        gain * stats.binom.sf(first - 2, clones, 0.5)
        - cost * stats.binom.sf(first - 1, clones, 0.5)
    )
    assert exact <= amplified_delta(coin, contributors, epsilon) <= exact * 1.001


@pytest.mark.parametrize("contributors", [1, 2, 1_000, 10**6])
def test_omitted_clone_counts_have_at_most_the_stated_probability(contributors: int) -> None:
    clones, masses, fewer = _clones(HiddenCoin(1.0, 0.3), contributors, 20)
    assert fewer >= stats.binom.cdf(clones[0] - 1, contributors - 1, 0.3)
    assert fewer < 1e-20
    assert masses.sum() == pytest.approx(1, rel=1e-12)


def test_largest_local_loss_that_shuffling_reduces_to_epsilon_is_found() -> None:
    def coins(loss: float) -> list[HiddenCoin]:
        return [of_any_randomizer(loss), of_randomized_response(loss, 5)]

    loss = most_local_loss(1.0, 1e-6, 10**4, coins)
    assert min(amplified_delta(coin, 10**4, 1.0) for coin in coins(loss)) <= 1e-6
    assert min(amplified_delta(coin, 10**4, 1.0) for coin in coins(loss * 1.0001)) > 1e-6


def test_largest_local_loss_is_epsilon_with_few_contributors() -> None:
    loss = most_local_loss(1.0, 1e-6, 3, lambda loss: [of_any_randomizer(loss)])
    assert loss == pytest.approx(1.0, rel=1e-4)
    assert loss >= 1.0


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="expected a finite 'loss' > 0"):
        HiddenCoin(0.0, 0.5)
    with pytest.raises(ValueError, match="expected at least 1"):
        amplified_epsilon(of_any_randomizer(1.0), 0, 1e-6)
    with pytest.raises(ValueError, match="delta is"):
        most_local_loss(1.0, 0.0, 10, lambda loss: [of_any_randomizer(loss)])


def randomized_response(loss: float, symbols: int, value: int) -> dict[int, float]:
    total = math.exp(loss) + symbols - 1
    return {s: (math.exp(loss) if s == value else 1) / total for s in range(symbols)}


def rappor(loss: float, value: int) -> dict[int, float]:
    reversed_ = 1 / (math.exp(loss / 2) + 1)
    held = 1 << value >> 1
    return {
        word: reversed_ ** (word ^ held).bit_count()
        * (1 - reversed_) ** (3 - (word ^ held).bit_count())
        for word in range(8)
    }


def assert_is_coin_of(
    coin: HiddenCoin, response: Callable[[int], Mapping[int, float]], values: int
) -> None:
    laws = [response(value) for value in range(values)]
    likelier = [word for word in laws[1] if laws[1][word] > laws[2][word] * (1 + 1e-9)]
    unlikelier = [word for word in laws[1] if laws[2][word] > laws[1][word] * (1 + 1e-9)]
    up, down = (math.fsum(laws[1][word] for word in words) for words in (likelier, unlikelier))
    assert up / down == pytest.approx(math.exp(coin.loss))
    assert coin.shown == pytest.approx(up + down)
    fair = 2 * min(
        math.fsum(law[word] for word in words) for law in laws for words in (likelier, unlikelier)
    )
    assert coin.clone == pytest.approx(fair)


def worlds(
    coin: HiddenCoin, contributors: int
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    clones = stats.binom.pmf(np.arange(contributors), contributors - 1, coin.clone)
    one: defaultdict[tuple[int, int], float] = defaultdict(float)
    other: defaultdict[tuple[int, int], float] = defaultdict(float)
    for count, mass in enumerate(clones.tolist()):
        for heads in range(count + 1):
            likely = coin.shown * mass * math.comb(count, heads) / 2**count
            for world, up in zip((one, other), coin.odds, strict=True):
                world[count, heads + 1] += likely * up
                world[count, heads] += likely * (1 - up)
    for world in (one, other):
        world[-1, 0] = 1 - coin.shown
    return one, other


def largest_divergence(
    response: Callable[[int], Mapping[int, float]], values: int, others: int
) -> Callable[[float], float]:
    """Return the largest delta over all values of all users, as a function of epsilon."""
    laws = {
        held: shuffled([response(value) for value in held])
        for held in product(range(values), repeat=others + 1)
    }
    pairs = [
        (laws[(one, *rest)], laws[(other, *rest)])
        for one, other in permutations(range(values), 2)
        for rest in product(range(values), repeat=others)
    ]
    return lambda epsilon: max(divergence(one, other, epsilon) for one, other in pairs)


def shuffled(messages: list[Mapping[int, float]]) -> dict[tuple[int, ...], float]:
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for drawn in product(*(message.items() for message in messages)):
        law[tuple(sorted(word for word, _ in drawn))] += math.prod(p for _, p in drawn)
    return law


def divergence(one: Mapping[Any, float], other: Mapping[Any, float], epsilon: float) -> float:
    factor = math.exp(epsilon)
    return math.fsum(max(0.0, p - factor * other.get(view, 0.0)) for view, p in one.items())
