"""Calibrate the mechanism of a FutureRand job from its parameters."""

from __future__ import annotations

from dpstream.randomizers.accounting.calibration import optimal, published
from dpstream.randomizers.accounting.order_weights import optimal_order_weights
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRandParameters
from dpstream.randomizers.parameter_checks import MAX_HORIZON


def calibrate(parameters: FutureRandParameters, last_epoch: int) -> FutureRandLaw:
    """Calibrate the mechanism of a job; the horizon is `last_epoch` rounded up to a power of two.

    An order with fewer complete intervals than `max_changes` needs only one sign per interval, and
    is then more accurate. The probabilities of orders minimize the average error of all estimates.
    The published calibration uses `max_changes` signs in every order and draws orders uniformly.

    Raises `ValueError` unless there are 1 to 2^63 epochs.

    >>> law = calibrate(FutureRandParameters(epsilon=1.0, max_changes=4), last_epoch=170)
    >>> law.horizon, [composed.k for composed in law.composed]
    (256, [4, 4, 4, 4, 4, 4, 2, 1, 1])
    """
    if not 1 <= last_epoch <= MAX_HORIZON:
        raise ValueError(f"got {last_epoch} epochs; expected 1 to 2^63")
    orders = (last_epoch - 1).bit_length() + 1
    horizon, max_changes, epsilon = 1 << (orders - 1), parameters.max_changes, parameters.epsilon
    if parameters.calibration == "published":
        composed = (published(max_changes, epsilon),) * orders
        return FutureRandLaw(horizon, epsilon, (1,) * orders, composed)
    budgets = [max(1, min(max_changes, last_epoch >> order)) for order in range(orders)]
    laws = {budget: optimal(budget, epsilon) for budget in set(budgets)}
    weights = optimal_order_weights([laws[budget].c_gap ** -2 for budget in budgets], last_epoch)
    return FutureRandLaw(horizon, epsilon, weights, tuple(laws[budget] for budget in budgets))
