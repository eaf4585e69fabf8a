"""Privacy loss of reports from permanent answers: two chained randomized responses.

A device draws an answer to each value of a bit, once. Each report is the answer to the current
value, randomly reversed again. Reports of an unchanged value reveal no more than its answer, for
any number of reports. A change replaces one answer with the other, and the reports before and after
it distinguish the two. So the loss of a whole stream grows with its length, without limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext

from dpstream.randomizers.composed import ComposedLaw

# Sums of positive terms are right to 70 digits: this margin far exceeds their error.
_ROUNDING = Decimal(10) ** -60


def unchanged_loss(
    permanent: ComposedLaw, instantaneous: ComposedLaw, reports: int, bits: int = 1
) -> float:
    """Return the privacy loss of bits that never change, each reported t times, rounded up.

    Let A be the odds of keeping an answer, R the odds of keeping a report, and t = `reports`. The
    loss of one bit is ln((A R^t + 1) / (A + R^t)): that of t identical reports, which reveal the
    most. It is less than ln A. Each of the `bits` bits has answers of its own. `permanent` and
    `instantaneous` are distributions of one sign: the answer to a value, and the report on it.
    """
    if reports == 0:
        return 0.0

    def ratio(odds: Decimal, step: Decimal) -> Decimal:
        likelihood_ratio = step**reports
        return (odds * likelihood_ratio + 1) / (odds + likelihood_ratio)

    return _loss(permanent, instantaneous, ratio, bits)


def stream_loss(
    permanent: ComposedLaw, instantaneous: ComposedLaw, reports: int, bits: int = 1
) -> float:
    """Return the privacy loss of bit streams, over all pairs of streams, rounded up.

    Let A and R be the odds of keeping an answer and a report. Let T be the number of reports, D the
    surplus of ones over zeros among the reports, and d the surplus among the reports of epochs with
    value 1. Up to factors shared by all streams, the reports have the probability

        A R^(u/2) + R^(-u/2) / A + R^(D/2) + R^(-D/2),    u = 2 d - D,

    with one term for each of the four pairs of answers. For any reports, u lies between -T and T
    and has the parity of T. So the ratio of the largest to the smallest such sum is at most that
    for D = 0 or +-1 if u takes all these values. With one report per epoch, u does. It is T if the
    stream equals the reports. A stream with one change can equal the reports 0...01...1, or have
    any other u for these reports. In this case the loss is exact; otherwise it is an upper bound.
    Arguments are as in `unchanged_loss`.
    """

    def ratio(odds: Decimal, step: Decimal) -> Decimal:
        root = step.sqrt()

        def same(u: int) -> Decimal:
            return odds * root**u + 1 / (odds * root**u)

        # Minimal near u = -2 ln A / ln R, at one of its two neighbors of the parity of T.
        center = math.floor(-2 * odds.ln() / step.ln())
        below = center - (center - reports) % 2
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
    """Return `bits` times the logarithm of `ratio`, a function of both odds, rounded up."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 80, MAX_EMAX, MIN_EMIN
        odds, step = (
            Decimal(law.weights[0]) / law.weights[1] for law in (permanent, instantaneous)
        )
        loss = bits * (ratio(odds, step).ln() * (1 + _ROUNDING) + _ROUNDING)
        nearest = float(loss)
        return nearest if Decimal(nearest) >= loss else math.nextafter(nearest, math.inf)
