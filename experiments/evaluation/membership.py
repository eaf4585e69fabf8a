"""Membership inference: test whether a model reveals the users it was trained on.

A user with a loss below a threshold is classified as a member (Yeom, Giacomelli, Fredrikson and
Jha, "Privacy Risk in Machine Learning", 2018). Section VIII of "Encode, Shuffle, Analyze Privacy
Revisited" (2020) measures LDP-SGD in this way (Table XI, with the erroneous bound -ln(TPR - FPR)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Membership:
    """Success of distinguishing members from non-members.

    Attributes:
        advantage: Maximum over all thresholds of TPR - FPR: the fraction of members classified as
            members, minus the fraction of non-members so classified.
        uncertainty: Value that the advantage exceeds by chance in one of twenty runs if members and
            non-members are indistinguishable (Kolmogorov-Smirnov).
    """

    advantage: float
    uncertainty: float

    @property
    def epsilon(self) -> float:
        """Lower bound on a pure epsilon, -ln(1 - advantage).

        Epsilon implies 1 - FPR <= e^epsilon (1 - TPR), and so TPR - FPR <= 1 - e^-epsilon.
        """
        return -math.log1p(-self.advantage) if self.advantage < 1 else math.inf


def membership(members: NDArray[np.float64], others: NDArray[np.float64]) -> Membership:
    """Measure how well losses separate members from others, shapes (n,) and (m,).

    >>> membership(np.array([0.1, 0.2, 0.9]), np.array([0.3, 0.8, 1.0])).advantage.__round__(3)
    0.667
    """
    thresholds = np.concatenate([members, others])
    below = [
        np.searchsorted(np.sort(losses), thresholds, side="right") / len(losses)
        for losses in (members, others)
    ]
    advantage = max(0.0, float((below[0] - below[1]).max()))
    exceeded = math.sqrt(-math.log(0.05) / 2 * (1 / len(members) + 1 / len(others)))
    return Membership(advantage, exceeded)
