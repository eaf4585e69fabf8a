"""Calibrate sampled_response: the number of answers, and the joint distribution of their flips."""

from __future__ import annotations

from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.sampled_response import (
    MAX_REPORTS,
    SampledResponseLaw,
    SampledResponseParameters,
)


def calibrate(parameters: SampledResponseParameters, last_epoch: int) -> SampledResponseLaw:
    """Calibrate with `reports` answers, or with the number that minimizes the error at `share`.

    Raises `ValueError` if there are no epochs or too many, or fewer than `reports`.

    >>> [calibrate(SampledResponseParameters(epsilon), 52).reports for epsilon in (1, 2, 4, 6)]
    [1, 2, 3, 5]
    """
    most = max(1, min(MAX_REPORTS, last_epoch))
    counts = range(1, most + 1) if parameters.reports is None else [parameters.reports]
    laws = (
        SampledResponseLaw(last_epoch, parameters.epsilon, optimal(count, parameters.epsilon))
        for count in counts
    )
    return min(laws, key=lambda law: unit_variance(law, parameters.share))


def unit_variance(law: SampledResponseLaw, share: float, users: int | None = None) -> float:
    """Return the variance of an estimate per enrolled user, of whom `share` have value 1.

    The first part is due to flips, the second to who is asked; `users` None: of many users.
    """
    asked = law.reports / law.last_epoch
    small = 1.0 if users is None else users / max(1, users - 1)
    flips = (law.c_gap**-2 - 1) / 4
    return (flips + (1 - asked) * small * share * (1 - share)) / asked
