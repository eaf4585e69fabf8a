"""From parameters to constants; no device imports it."""

from __future__ import annotations

import math

from . import WHOLE, FreshResponseLaw, FreshResponseParameters


def calibrate(
    parameters: FreshResponseParameters, last_epoch: int, minimum: int
) -> FreshResponseLaw:
    """The most coins that tell the value, so that all epochs together lose at most epsilon."""
    share = 1 / (1 + math.exp(-parameters.epsilon / last_epoch))
    kept = int(share * WHOLE) - 1
    return FreshResponseLaw(last_epoch, kept)
