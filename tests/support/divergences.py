"""Divergence between two product distributions, computed over all outcomes."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pair: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Probabilities of the outcomes under both hypotheses."""


def hockey_stick(one: Pair, other: Pair, epsilon: float) -> float:
    """Return the sum of max(0, P - e^epsilon Q) over all outcomes of two independent parts."""
    p, q = one
    # Outcomes of the other part by likelihood ratio, with sums over all outcomes of at least a
    # given ratio.
    other_p, other_q = other
    with np.errstate(divide="ignore"):
        ratios = np.where(other_q > 0, other_p / other_q, math.inf)
        order = np.argsort(-ratios)
        needed = math.exp(epsilon) * np.where(p > 0, q / p, math.inf)
    above_p, above_q = (
        np.concatenate(([0], np.cumsum(each[order]))) for each in (other_p, other_q)
    )
    counted = np.searchsorted(-ratios[order], -needed, side="right")
    return float((p * above_p[counted] - math.exp(epsilon) * q * above_q[counted]).sum())
