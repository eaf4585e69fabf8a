"""Calibration from parameters to constants, which no device imports."""

from __future__ import annotations

import math

from . import WHOLE, FreshResponseLaw, FreshResponseParameters


def calibrate(
    parameters: FreshResponseParameters, last_epoch: int, minimum: int
) -> FreshResponseLaw:
    """Return the largest number of truthful draws with a total loss of at most epsilon."""
    share = 1 / (1 + math.exp(-parameters.epsilon / last_epoch))
    kept = int(share * WHOLE) - 1
    return FreshResponseLaw(last_epoch, kept)
