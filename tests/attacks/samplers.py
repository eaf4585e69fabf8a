"""Samples compared with exact distributions: dummies, signs, messages, labels, responses.

Every outcome is compared with its exact probability by the binomial distribution. A correct sampler
fails with a probability of at most `false_alarm`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from scipy import stats

from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.counted_messages import CountedMessages, Reports, written_out
from dpstream.randomizers.division import divide
from dpstream.randomizers.dummies import BernoulliDummies, ClusteredDummies, Dummies, PoissonDummies
from dpstream.randomizers.sampled_response import SampledResponse, SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate as calibrate_responses
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_item_counts.calibration import calibrate
from experiments.protocols.fragments.permanent_bits import KEY_BYTES, PermanentBits

Coins = np.random.Generator
Drawn = Iterable[Hashable]
Shares = Mapping[Hashable, float]
# Number of samples drawn one at a time.
_TRIALS = 1_000
# Outcomes less likely than this are combined.
_LEAST = 1e-3


def sampled_draws(randomness: Coins, false_alarm: float) -> dict[str, str]:
    """Return, for each sampler, an outcome that is too unlikely, or an empty text."""
    return {
        what: compare(*sample(randomness), false_alarm / len(SAMPLED))
        for what, sample in SAMPLED.items()
    }


def compare(drawn: Drawn, law: Shares, false_alarm: float) -> str:
    """Return an outcome drawn too often or too rarely, or an empty text."""
    seen, rare = Counter(drawn), "something less likely"
    trials = seen.total()
    shares = {each: likely for each, likely in law.items() if likely >= _LEAST}
    often = {each: seen[each] for each in shares}
    shares[rare] = max(0.0, 1 - math.fsum(shares.values()))
    often[rare] = trials - sum(often.values())
    for each, likely in shares.items():
        doubt = 2 * min(
            stats.binom.cdf(often[each], trials, likely),
            stats.binom.sf(often[each] - 1, trials, likely),
        )
        if not doubt >= false_alarm / len(shares):
            return (
                f"draws {each} {often[each]:,} times in {trials:,}; expected {likely * trials:,.1f}"
            )
    return ""


def _dummies(
    dummies: Dummies, contributors: int, law: stats.rv_discrete
) -> Callable[[Coins], tuple[Drawn, Shares]]:
    """Sample two of three cells jointly; cells must be independent, with distribution `law`."""

    def sample(randomness: Coins) -> tuple[Drawn, Shares]:
        drawn = (
            np.bincount(dummies.draw(contributors, 3, randomness), minlength=3)[:2].tolist()
            for _ in range(_TRIALS)
        )
        numbers = range(int(law.isf(_LEAST)) + 2)
        alone = {number: float(law.pmf(number)) for number in numbers}
        return map(tuple, drawn), {
            pair: alone[pair[0]] * alone[pair[1]] for pair in product(numbers, repeat=2)
        }

    return sample


def _counted(
    dummies: Dummies, contributors: int, law: stats.rv_discrete
) -> Callable[[Coins], tuple[Drawn, Shares]]:
    """Sample the counts of 20,000 cells, each of which must have distribution `law`."""

    def sample(randomness: Coins) -> tuple[Drawn, Shares]:
        drawn = dummies.counts(contributors, 20_000, randomness).tolist()
        return drawn, {number: float(law.pmf(number)) for number in range(int(law.isf(_LEAST)) + 2)}

    return sample


def _signs(randomness: Coins) -> tuple[Drawn, Shares]:
    law = ComposedLaw((40, 15, 6, 2, 1))
    drawn = law.sample(20_000, randomness)
    return map(tuple, (drawn < 0).tolist()), {
        tuple(place in reversed_ for place in range(4)): float(law.probability(many))
        for many in range(5)
        for reversed_ in combinations(range(4), many)
    }


def _words(randomness: Coins) -> tuple[Drawn, Shares]:
    """Sample messages of an item, which are uniformly distributed among its possible messages."""
    requested = ShuffledCountsParameters(
        4.0, 0.1, dummies="shuffle", domain=tuple("abcdefgh"), buckets=3
    )
    law = calibrate(requested, 1, 2)
    item, hashes = 6, law.hashes
    devices = ShuffledItemCounts(law)
    devices.enroll(10_000, randomness)
    words = devices.report(1, np.full(10_000, item), None, randomness)
    directions = np.arange(hashes.directions)
    buckets = hashes.buckets_of(directions, np.full(len(directions), item - 1))
    own = (directions * hashes.buckets + buckets).tolist()
    return written_out(words)[:, 0].tolist(), dict.fromkeys(own, 1 / len(own))


def _labels(randomness: Coins) -> tuple[Drawn, Shares]:
    """Sample which of three shufflers receives each of two messages; both are independent."""
    reports = np.array([[7], [8]], np.uint8)
    return _instances(lambda: divide(reports, 3, None, randomness)), _NINTHS


def _counted_labels(randomness: Coins) -> tuple[Drawn, Shares]:
    reports = CountedMessages(np.array([[7], [8]], np.uint8), np.ones(2, np.uint8))
    return _instances(lambda: divide(reports, 3, None, randomness)), _NINTHS


def _instances(divided: Callable[[], Sequence[Reports]]) -> Iterator[tuple[int, ...]]:
    for _ in range(_TRIALS):
        parts = [written_out(part)[:, 0].tolist() for part in divided()]
        yield tuple(
            next((instance for instance, part in enumerate(parts) if word in part), -1)
            for word in (7, 8)
        )


_NINTHS: Shares = dict.fromkeys(product(range(3), repeat=2), 1 / 9)


def _answers(randomness: Coins) -> tuple[Drawn, Shares]:
    """Sample responses to both values of a bit; repeated responses must be the same."""
    reversed_, cells = 0.3, 8
    bits = PermanentBits(cells, round(reversed_ * 2**32))
    nothing, everything = (np.array([row]) for row in ([0] * cells, range(1, cells + 1)))
    drawn: list[Hashable] = []
    for _ in range(300):
        key = np.frombuffer(randomness.bytes(KEY_BYTES), np.uint8)[None, :]
        zeros, ones, again = (bits.ones(key, held) for held in (nothing, everything, nothing))
        drawn += zip(zeros.tolist(), ones.tolist(), (zeros == again).tolist(), strict=True)
    return drawn, {
        (zero, one, True): (reversed_ if zero else 1 - reversed_)
        * (1 - reversed_ if one else reversed_)
        for zero, one in product((0, 1), repeat=2)
    }


def _phases(randomness: Coins) -> tuple[Drawn, Shares]:
    """Deal three phases to four users; every pair is equally likely to share one."""
    law = calibrate_responses(SampledResponseParameters(1.0), 3)

    def drawn() -> Iterator[Hashable]:
        for _ in range(_TRIALS):
            devices = SampledResponse(law)
            devices.enroll(4, randomness)
            yield tuple(devices.state_arrays()["phase"].tolist())

    every = product(range(3), repeat=4)
    likely: Shares = {each: 1 / 36 for each in every if len(set(each)) == 3}
    return drawn(), likely


SAMPLED: Mapping[str, Callable[[Coins], tuple[Drawn, Shares]]] = {
    "Poisson dummies of three contributors": _dummies(PoissonDummies(1.2), 3, stats.poisson(1.2)),
    "Poisson dummies, cell by cell": _counted(PoissonDummies(40_000.0), 1, stats.poisson(2.0)),
    "clusters of dummies": _dummies(ClusteredDummies(3, 0.1, 0.9), 2, stats.nbinom(0.2, 0.1)),
    "dummies with a probability": _dummies(BernoulliDummies(3, 0.3), 5, stats.binom(5, 0.3)),
    "composed signs": _signs,
    "the words of an item": _words,
    "labels of instances": _labels,
    "labels of counted messages": _counted_labels,
    "permanent answers": _answers,
    "phases dealt to a roster": _phases,
}
