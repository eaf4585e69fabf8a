"""From the parameters of a baseline to the constants its devices run on.

A device of `independent_response`, `erlingsson` and `bun` is FutureRand's: it draws its order
uniformly and has as many signs as changes at every order, as all of them were published. Only the
law of the signs differs.
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
from dpstream.randomizers.baselines import (
    BunParameters,
    ErlingssonParameters,
    IndependentResponseParameters,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
    SplitBudgetLaw,
    SplitBudgetParameters,
)
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.parameter_checks import MAX_HORIZON
from dpstream.randomizers.search import least_integer

# Of an interval: so small that the ends of one agree in all the digits that are kept.
_PARTS = 1 << 270


def calibrate(parameters: Any, last_epoch: int) -> Any:
    """Calibrate the law of a job, of the class that its protocol has.

    Args:
        parameters: of any baseline.
        last_epoch: number of epochs.

    Raises:
        ValueError: there is no epoch, there are too many, or epsilon is too large.

    >>> law = calibrate(SplitBudgetParameters(1), last_epoch=10)
    >>> law.loss, round(law.c_gap, 4)  # tanh(1 / 20)
    (1.0, 0.05)
    """
    return CALIBRATIONS[type(parameters)](parameters, last_epoch)


def independent(k: int, epsilon: float) -> ComposedLaw:
    """Randomized response with epsilon / k for every sign (Example 4.2 of "Randomize the Future").

    Args:
        k: number of signs.
        epsilon: the loss of all signs together; the weights are rounded so as never to exceed it.

    >>> round(independent(4, 1.0).c_gap, 4)  # tanh(1 / 8)
    0.1244
    """
    last = 1 << WEIGHT_BITS
    with localcontext() as context:
        context.prec, context.rounding = 80, ROUND_FLOOR
        loss = Decimal(epsilon)
        # Decimal.exp is rounded to the nearest whatever is asked: its neighbour below is too small.
        weights = [
            int((loss * (k - distance) / k).exp().next_minus() * last) for distance in range(k)
        ]
    return ComposedLaw((*weights, last))


def erlingsson(k: int, epsilon: float) -> ComposedLaw:
    """Randomized response of one sign, which is drawn at random; the others are fair coins.

    Erlingsson et al., "Amplification by Shuffling" (2019), the protocol for changing values. They
    call it with half of the epsilon that is spent.

    Args:
        k: number of signs.
        epsilon: the loss, of the randomized response and of the k signs alike.

    >>> round(erlingsson(4, 0.5).c_gap, 4)  # tanh(1 / 4) / 4
    0.0612
    """
    kept, flipped = optimal(1, epsilon).weights
    return ComposedLaw(
        tuple((k - distance) * kept + distance * flipped for distance in range(k + 1))
    )


def bun(k: int, epsilon: float) -> ComposedLaw:
    """The composed randomizer of Bun, Nelson and Stemmer (2019), as in appendix A.2 of the paper.

    Each sign is kept by randomized response with a loss e where epsilon = 6 e sqrt(k ln(1/beta))
    and beta = (e sqrt(k) / (2 (k + 1)))^(2/3); results outside of kp +- sqrt(k ln(2/beta) / 2),
    p = 1 / (exp(e) + 1), are replaced by a uniform draw from there.

    Args:
        k: number of signs.
        epsilon: what the rule is asked for; it spends less.

    Raises:
        ValueError: epsilon is too large: no e belongs to it.

    >>> law = bun(4, 1.0)
    >>> round(law.c_gap, 4), law.loss < 1
    (0.0236, True)
    """
    with high_precision():
        root, asked = Decimal(k).sqrt(), Decimal(epsilon)
        # Epsilon increases with e up to here, where beta^(3/2) = e^(-1/2); no further e is needed.
        largest = 2 * (k + 1) / root * (Decimal(-1) / 2).exp()

        def log_inverse_beta(single: Decimal) -> Decimal:
            return -(single * root / (2 * (k + 1))).ln() * 2 / 3

        def asked_for(single: Decimal) -> Decimal:
            return 6 * single * (k * log_inverse_beta(single)).sqrt()

        if asked_for(largest) < asked:
            raise ValueError(
                f"epsilon is {epsilon:g}, the randomizer of Bun et al. for k = {k} knows none "
                f"above {asked_for(largest):.3g}: lower epsilon, or take future_rand"
            )
        enough = least_integer(
            lambda parts: asked_for(largest * parts / _PARTS) >= asked, 0, _PARTS
        )
        low = largest * (enough - 1) / _PARTS
        centre = k / (low.exp() + 1)
        radius = (k * (Decimal(2).ln() + log_inverse_beta(low)) / 2).sqrt()
        return annulus(k, low, centre - radius, centre + radius)


def _dyadic(
    signs: Callable[[int, float], ComposedLaw],
) -> Callable[[IndependentResponseParameters, int], FutureRandLaw]:
    """Calibrate orders drawn uniformly, and one law of signs for all of them."""

    def law(asked: IndependentResponseParameters, last_epoch: int) -> FutureRandLaw:
        composed = signs(asked.changes, _spent(asked))
        if not 1 <= last_epoch <= MAX_HORIZON:
            raise ValueError(f"{last_epoch} epochs, must be from 1 to 2^63")
        orders = (last_epoch - 1).bit_length() + 1
        return FutureRandLaw(1 << (orders - 1), asked.epsilon, (1,) * orders, (composed,) * orders)

    return law


def _spent(asked: Any) -> float:
    """What is spent of epsilon: half of it as `erlingsson` and `memoized_response` are published.

    The two bits that tell two values apart in RAPPOR have half of the loss each.
    """
    half = getattr(asked, "calibration", "full") == "published"
    return float(asked.epsilon / (2 if half else 1))


def _split(asked: SplitBudgetParameters, last_epoch: int) -> SplitBudgetLaw:
    """Calibrate randomized response with epsilon / last_epoch, rounded down."""
    with localcontext() as context:
        context.prec, context.rounding = 80, ROUND_FLOOR
        single = Decimal(asked.epsilon) / max(1, last_epoch)
    return SplitBudgetLaw(last_epoch, asked.epsilon, optimal(1, single))


def _memoized(asked: MemoizedResponseParameters, last_epoch: int) -> MemoizedResponseLaw:
    """Calibrate the two responses, chained as in Arcolezi et al. (2021).

    Permanent responses have the loss that the calibration gives them. Instantaneous ones are such
    that a single report has the wanted share of it: for losses e of the permanent, i of the
    instantaneous response and f of a report, tanh(f / 2) = tanh(e / 2) tanh(i / 2).
    """
    permanent = _spent(asked)
    with high_precision():
        first = Decimal(asked.first_share) * Decimal(permanent)
        gap = _tanh_of_half(first) / _tanh_of_half(Decimal(permanent))
        unit = 1 << WEIGHT_BITS
        instantaneous = ComposedLaw((int((1 + gap) / (1 - gap) * unit), unit))
    return MemoizedResponseLaw(last_epoch, asked.epsilon, optimal(1, permanent), instantaneous)


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
"""From parameters of each class and a number of epochs, the law of a job."""
