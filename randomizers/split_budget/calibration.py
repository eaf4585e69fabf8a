"""From the parameters of a budget that is split to the constants of its devices."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal, localcontext

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.split_budget import SplitBudgetLaw, SplitBudgetParameters


def calibrate(parameters: SplitBudgetParameters, last_epoch: int) -> SplitBudgetLaw:
    """The law of a job: randomized response with epsilon / last_epoch, rounded down.

    Raises:
        ValueError: there is no epoch, or there are more than 2^20.

    >>> law = calibrate(SplitBudgetParameters(1), last_epoch=10)
    >>> law.loss, round(law.c_gap, 4)  # tanh(1 / 20)
    (1.0, 0.05)
    """
    with localcontext() as context:
        context.prec, context.rounding = 80, ROUND_FLOOR
        single = Decimal(parameters.epsilon) / max(1, last_epoch)
    return SplitBudgetLaw(last_epoch, parameters.epsilon, optimal(1, single))
