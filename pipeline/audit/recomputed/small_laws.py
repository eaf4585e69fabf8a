"""Small distributions in integers, and exact measures of how well two can be distinguished.

A pair of distributions is a list of outcomes, each with its weight in the first and in the second
world. A weight is a probability times a total that is common to both worlds. Omitted outcomes can
only reduce a divergence, so a divergence summed here never exceeds the true divergence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from typing import Final, TypeAlias

from dpstream.pipeline.audit.audits import AuditOutcome, Finding
from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.accounting.cell_noise import (
    BinomialNoise,
    CellNoise,
    NegativeBinomialNoise,
)

Pair: TypeAlias = Sequence[tuple[int, int]]
"""Weight of every outcome in the first and in the second world."""

SUBJECT: Final = "accounting"

UNIT: Final = 1 << 220
"""Denominator of rounded probabilities in distributions without exact fractions."""

_DIGITS = 90
# Weight (of `UNIT`) up to which a count is omitted.
_LEAST: Final = UNIT >> 36


def finding(attack: str, what: str, reasons: Iterable[str]) -> Finding:
    reason = next((each for each in reasons if each), "")
    outcome = AuditOutcome.FAILED if reason else AuditOutcome.EXACT
    return Finding(SUBJECT, attack, what, outcome, reason=reason)


def less_than_it_is(what: str, stated: float | Fraction, least: Fraction) -> str:
    if Fraction(stated) >= least:
        return ""
    return (
        f"states a delta of {float(stated):.6g} for {what}; the true delta is at least "
        f"{float(least):.6g}"
    )


def mirrored(pair: Pair) -> Pair:
    return [(other, one) for one, other in pair]


def excess(pair: Pair, epsilon: float, total: int, unsure: int = 0) -> Fraction:
    """Return the largest P(set) - e^epsilon Q(set) over all sets, rounded down.

    P is the first world's distribution. Weights sum to `total`; each is wrong by at most `unsure`.
    """
    factor = exponential(epsilon, rounded_up=True)
    up, down = factor.numerator, factor.denominator
    doubt = unsure * (up + down)
    more = sum(max(0, down * one - up * other - doubt) for one, other in pair)
    return Fraction(more, down * total)


def repeated(pair: Pair, times: int) -> Iterator[tuple[int, int]]:
    """Yield all outcomes of `times` draws, merging those with the same number of each kind."""

    def ways(left: int, kinds: Pair) -> Iterator[tuple[int, int]]:
        (one, other), rest = kinds[0], kinds[1:]
        if not rest:
            yield one**left, other**left
            return
        for drawn in range(left + 1):
            chosen = math.comb(left, drawn)
            first, second = chosen * one**drawn, chosen * other**drawn
            for more, others in ways(left - drawn, rest):
                yield first * more, second * others

    return ways(times, pair)


def together(pairs: Iterable[Pair]) -> Iterator[tuple[int, int]]:
    for outcomes in product(*pairs):
        yield math.prod(one for one, _ in outcomes), math.prod(other for _, other in outcomes)


def law_of_noise(noise: CellNoise) -> dict[int, int]:
    """Return the probability of each number of dummies, times `UNIT`, rounded down.

    Each probability follows from the definition, without recursion. Unlikely numbers are omitted.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        most = int(min(noise.largest, noise.mean + 20 * math.sqrt(noise.variance) + 60))
        weights = (int(_probability(noise, count) * UNIT) for count in range(most + 1))
        return {count: weight for count, weight in enumerate(weights) if weight > _LEAST}


def shifted(noise: CellNoise, shift: int) -> Pair:
    """Return noise in the first world, and noise plus `shift` messages in the second world.

    Unlikely outcomes are omitted.
    """
    law = law_of_noise(noise)

    def weight(count: int) -> int | None:
        return law.get(count) if 0 <= count <= noise.largest else 0

    pairs = (
        (weight(count), weight(count - shift)) for count in {*law, *(each + shift for each in law)}
    )
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def least_delta(cells: Sequence[Pair], epsilon: float) -> Fraction:
    """Return the least delta in both orders of worlds, for cells (`shifted`) observed jointly."""
    seen = list(together(cells))
    total = UNIT ** len(cells)
    # Each weight is rounded down by at most 1.
    unsure = 2 * len(cells) * total // UNIT
    return max(excess(each, epsilon, total, unsure) for each in (seen, mirrored(seen)))


def _probability(noise: CellNoise, count: int) -> Decimal:
    mean = Decimal(noise.mean)
    if isinstance(noise, BinomialNoise):
        hit = Decimal(noise.probability)
        missed = (1 - hit) ** (noise.contributors - count)
        return math.comb(noise.contributors, count) * hit**count * missed
    if isinstance(noise, NegativeBinomialNoise):
        shape = Decimal(noise.shape)
        ways = math.prod(((shape + each) / (each + 1) for each in range(count)), start=Decimal(1))
        success = shape / (shape + mean)
        return ways * (shape * success.ln()).exp() * (1 - success) ** count
    return (-mean).exp() * mean**count / math.factorial(count)
