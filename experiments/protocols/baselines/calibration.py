"""Calibrate the mechanisms of the baselines from their parameters.

Devices of `independent_response`, `erlingsson` and `bun` are those of FutureRand. As in the papers,
a device draws its order uniformly, and has as many signs as changes at every order. Only the
distribution of the signs differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any, Final

from dpstream.randomizers.accounting.calibration import (
    WEIGHT_BITS,
    annulus,
    high_precision,
    optimal,
)
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.parameter_checks import MAX_HORIZON
from dpstream.randomizers.search import least_integer
from experiments.protocols.baselines import (
    BunParameters,
    ErlingssonParameters,
    IndependentResponseParameters,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
    SplitBudgetLaw,
    SplitBudgetParameters,
)

# Number of parts of an interval: both ends of a part agree in all digits that are kept.
_PARTS = 1 << 270


def calibrate(parameters: Any, last_epoch: int) -> Any:
    """Return the mechanism of a job, in the class of its protocol.

    Raises `ValueError` if there are no epochs or too many, or epsilon is too large.

    >>> law = calibrate(SplitBudgetParameters(1), last_epoch=10)
    >>> law.loss, round(law.c_gap, 4)  # tanh(1 / 20)
    (1.0, 0.05)
    """
    return CALIBRATIONS[type(parameters)](parameters, last_epoch)


def independent(k: int, epsilon: float) -> ComposedLaw:
    """Calibrate randomized response with epsilon / k for each of k signs.

    The weights are rounded so that the loss of all signs together never exceeds epsilon.

    Reference: *Randomize the Future*, Example 4.2.

    >>> round(independent(4, 1.0).c_gap, 4)  # tanh(1 / 8)
    0.1244
    """
    last = 1 << WEIGHT_BITS
    with localcontext() as context:
        context.prec, context.rounding = 80, ROUND_FLOOR
        loss = Decimal(epsilon)
        # Decimal.exp always rounds to nearest; the next smaller number is a lower bound.
        weights = [
            int((loss * (k - distance) / k).exp().next_minus() * last) for distance in range(k)
        ]
    return ComposedLaw((*weights, last))


def erlingsson(k: int, epsilon: float) -> ComposedLaw:
    """Calibrate randomized response of one random sign out of k; the others are fair coins.

    The randomized response has the loss epsilon, and so do all k signs together. The paper uses
    half of the requested epsilon.

    Reference: Erlingsson et al., *Amplification by Shuffling*, 2019, protocol for changing values.

    >>> round(erlingsson(4, 0.5).c_gap, 4)  # tanh(1 / 4) / 4
    0.0612
    """
    kept, flipped = optimal(1, epsilon).weights
    return ComposedLaw(
        tuple((k - distance) * kept + distance * flipped for distance in range(k + 1))
    )


def bun(k: int, epsilon: float) -> ComposedLaw:
    """Calibrate the composed randomizer of Bun, Nelson and Stemmer (2019) for k signs.

    As in appendix A.2 of the paper, randomized response with a loss e is applied to each sign. Here
    epsilon = 6 e sqrt(k ln(1/beta)) and beta = (e sqrt(k) / (2 (k + 1)))^(2/3). Outputs whose
    distance from the input is outside kp +- sqrt(k ln(2/beta) / 2), for p = 1 / (exp(e) + 1), are
    replaced by a uniform draw among these outputs. The mechanism spends less than epsilon.

    Raises `ValueError` if epsilon is too large for any e.

    >>> law = bun(4, 1.0)
    >>> round(law.c_gap, 4), law.loss < 1
    (0.0236, True)
    """
    with high_precision():
        root, requested = Decimal(k).sqrt(), Decimal(epsilon)
        # Epsilon increases with e up to here, where beta^(3/2) = e^(-1/2); larger e are not needed.
        largest = 2 * (k + 1) / root * (Decimal(-1) / 2).exp()

        def log_inverse_beta(single: Decimal) -> Decimal:
            return -(single * root / (2 * (k + 1))).ln() * 2 / 3

        def spent_epsilon(single: Decimal) -> Decimal:
            return 6 * single * (k * log_inverse_beta(single)).sqrt()

        if spent_epsilon(largest) < requested:
            raise ValueError(
                f"epsilon is {epsilon:g}; expected at most {spent_epsilon(largest):.3g} for the "
                f"randomizer of Bun et al. with k = {k}. Lower epsilon, or use future_rand"
            )
        enough = least_integer(
            lambda parts: spent_epsilon(largest * parts / _PARTS) >= requested, 0, _PARTS
        )
        low = largest * (enough - 1) / _PARTS
        center = k / (low.exp() + 1)
        radius = (k * (Decimal(2).ln() + log_inverse_beta(low)) / 2).sqrt()
        return annulus(k, low, center - radius, center + radius)


def _dyadic(
    signs: Callable[[int, float], ComposedLaw],
) -> Callable[[IndependentResponseParameters, int], FutureRandLaw]:
    def law(requested: IndependentResponseParameters, last_epoch: int) -> FutureRandLaw:
        composed = signs(requested.max_changes, _spent(requested))
        if not 1 <= last_epoch <= MAX_HORIZON:
            raise ValueError(f"got {last_epoch} epochs; expected 1 to 2^63")
        orders = (last_epoch - 1).bit_length() + 1
        return FutureRandLaw(
            1 << (orders - 1), requested.epsilon, (1,) * orders, (composed,) * orders
        )

    return law


def _spent(requested: Any) -> float:
    """Return the loss, which some published calibrations set to half of epsilon."""
    half = getattr(requested, "calibration", "full") == "published"
    return float(requested.epsilon / (2 if half else 1))


def _split(requested: SplitBudgetParameters, last_epoch: int) -> SplitBudgetLaw:
    with localcontext() as context:
        context.prec, context.rounding = 80, ROUND_FLOOR
        single = Decimal(requested.epsilon) / max(1, last_epoch)
    return SplitBudgetLaw(last_epoch, requested.epsilon, optimal(1, single))


def _memoized(requested: MemoizedResponseParameters, last_epoch: int) -> MemoizedResponseLaw:
    """Calibrate the two responses, chained as in Arcolezi et al. (2021).

    Permanent responses have the loss given by the calibration. With instantaneous responses, a
    single report has the requested fraction of that loss. If e is the loss of the permanent
    response, i that of the instantaneous response and f that of a report, then tanh(f / 2) =
    tanh(e / 2) tanh(i / 2).
    """
    permanent = _spent(requested)
    with high_precision():
        first = Decimal(requested.first_share) * Decimal(permanent)
        gap = _tanh_of_half(first) / _tanh_of_half(Decimal(permanent))
        unit = 1 << WEIGHT_BITS
        instantaneous = ComposedLaw((int((1 + gap) / (1 - gap) * unit), unit))
    return MemoizedResponseLaw(last_epoch, requested.epsilon, optimal(1, permanent), instantaneous)


def _tanh_of_half(loss: Decimal) -> Decimal:
    odds = loss.exp()
    return (odds - 1) / (odds + 1)


CALIBRATIONS: Final[Mapping[type[Any], Callable[[Any, int], Any]]] = {
    IndependentResponseParameters: _dyadic(independent),
    ErlingssonParameters: _dyadic(erlingsson),
    BunParameters: _dyadic(bun),
    SplitBudgetParameters: _split,
    MemoizedResponseParameters: _memoized,
}
"""Calibration function of each parameter class: from parameters and a number of epochs, it returns
the mechanism of a job."""
