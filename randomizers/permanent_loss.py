"""What reports lose that are made from permanent answers: two chained randomized responses.

A device draws an answer to either value of a bit, once; each report is the answer to the present
value, reversed anew. Of a value that stays, reports tell no more than its answer, however many they
are. A change puts one answer in the place of the other, and reports before and after it tell the
two apart: what a whole stream loses grows with its length, without limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext

from dpstream.randomizers.composed import ComposedLaw

# Sums of positive terms are right to 70 digits: far more is added than they are off.
_ROUNDING = Decimal(10) ** -60


def unchanged_loss(
    permanent: ComposedLaw, instantaneous: ComposedLaw, reports: int, bits: int = 1
) -> float:
    """The privacy loss of bits that never change, each reported so often, rounded up.

    ln((A R^t + 1) / (A + R^t)) with the odds A and R of keeping an answer and a report: that of t
    equal reports, which tell most. It is less than ln A.

    Args:
        permanent: the law of one sign: the answer to a value.
        instantaneous: the law of one sign: the report of an answer.
        reports: t.
        bits: how many there are, each with answers of its own.
    """
    if reports == 0:
        return 0.0

    def ratio(odds: Decimal, step: Decimal) -> Decimal:
        told = step**reports
        return (odds * told + 1) / (odds + told)

    return _loss(permanent, instantaneous, ratio, bits)


def stream_loss(
    permanent: ComposedLaw, instantaneous: ComposedLaw, reports: int, bits: int = 1
) -> float:
    """The privacy loss of whole streams of bits, over all pairs of streams, rounded up.

    Let A and R be the odds of keeping an answer and a report, T the reports, D the surplus of ones
    over zeros among them, and d that among the reports of epochs with value 1. Apart from factors
    that all streams share, the reports have the probability

        A R^(u/2) + R^(-u/2) / A + R^(D/2) + R^(-D/2),    u = 2 d - D,

    where the terms stand for the four pairs of answers. Whatever the reports, u lies between -T and
    T and has the parity of T; so the largest over the smallest such sum is at most that where D is
    0 or +-1 and u takes on all these values. With one report an epoch it does: u = T if the stream
    equals the reports, and one change is enough: to equal reports 0...01...1, and to have any u
    there. The loss is exact then, and otherwise a bound.

    Args:
        permanent: the law of one sign: the answer to a value.
        instantaneous: the law of one sign: the report of an answer.
        reports: T, of all epochs.
        bits: how many there are, each with answers of its own.
    """

    def ratio(odds: Decimal, step: Decimal) -> Decimal:
        root = step.sqrt()

        def same(u: int) -> Decimal:
            return odds * root**u + 1 / (odds * root**u)

        # Least near u = -2 ln A / ln R, at one of the two neighbours of the parity of T.
        centre = math.floor(-2 * odds.ln() / step.ln())
        below = centre - (centre - reports) % 2
        least = min(same(max(u, -reports)) for u in (below, below + 2))
        other = root ** (reports % 2) + root ** -(reports % 2)
        return (same(reports) + other) / (least + other)

    return _loss(permanent, instantaneous, ratio, bits)


def _loss(
    permanent: ComposedLaw,
    instantaneous: ComposedLaw,
    ratio: Callable[[Decimal, Decimal], Decimal],
    bits: int,
) -> float:
    """The logarithm of a ratio of the odds of both laws, so many times, rounded up."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 80, MAX_EMAX, MIN_EMIN
        odds, step = (
            Decimal(law.weights[0]) / law.weights[1] for law in (permanent, instantaneous)
        )
        loss = bits * (ratio(odds, step).ln() * (1 + _ROUNDING) + _ROUNDING)
        nearest = float(loss)
        return nearest if Decimal(nearest) >= loss else math.nextafter(nearest, math.inf)
