"""From the parameters of memoized responses to the constants of their devices."""

from __future__ import annotations

from decimal import Decimal

from dpstream.randomizers.accounting.calibration import WEIGHT_BITS, high_precision, optimal
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.memoized_response import MemoizedResponseLaw, MemoizedResponseParameters


def calibrate(parameters: MemoizedResponseParameters, last_epoch: int) -> MemoizedResponseLaw:
    """The law of a job, with the two responses chained as in Arcolezi et al. (2021).

    Permanent responses have the loss that the calibration gives them. Instantaneous ones are such
    that a single report has the wanted share of it: for losses e of the permanent, i of the
    instantaneous response and f of a report, tanh(f / 2) = tanh(e / 2) tanh(i / 2).

    Raises:
        ValueError: there is no epoch, or there are more than 2^20.
    """
    permanent = parameters.epsilon / (2 if parameters.calibration == "published" else 1)
    with high_precision():
        first = Decimal(parameters.first_share) * Decimal(permanent)
        gap = _tanh_of_half(first) / _tanh_of_half(Decimal(permanent))
        unit = 1 << WEIGHT_BITS
        instantaneous = ComposedLaw((int((1 + gap) / (1 - gap) * unit), unit))
    return MemoizedResponseLaw(last_epoch, parameters.epsilon, optimal(1, permanent), instantaneous)


def _tanh_of_half(loss: Decimal) -> Decimal:
    odds = loss.exp()
    return (odds - 1) / (odds + 1)
