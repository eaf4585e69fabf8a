"""How changes are followed, what that costs a device, and what it is worth to estimates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Kernel:
    """How changes are followed: what a change adds to u, and the share left an epoch later.

    Attributes:
        boost: a.
        decay: b.
    """

    boost: float
    decay: float

    @property
    def left(self) -> float:
        """q, the share of a change that is not boosted which estimates still lack, by epoch."""
        return (self.boost + self.decay) / (1 + self.boost)

    def clock(self, last_epoch: int, changes: int) -> float:
        """The most that u^2 adds up to, for streams with so many boosted changes.

        Changes alternate in sign and what is left of one falls, so |u| is at most 1/2 + a b^l, l
        epochs after the last of them; the sum over a segment between two is concave in its length,
        so equal lengths have the most.
        """
        segments = min(changes, last_epoch)
        short, longer = divmod(last_epoch, segments)
        beyond = (segments - longer) * self._beyond_a_quarter(short)
        if longer:
            beyond += longer * self._beyond_a_quarter(short + 1)
        return last_epoch / 4 + beyond

    def variances(self, last_epoch: int) -> NDArray[np.float64]:
        """Of estimates, for letters of variance 1, all devices present: shape (last_epoch,).

        An estimate is a sum of what came in at the epochs up to its own, of which that of l epochs
        ago has the weight h_l: 1 / (1 + a), then (q - b) q^(l-1) / (1 + a), q = (a + b) / (1 + a).
        """
        own, left = 1 / (1 + self.boost), self.left
        earlier = np.arange(last_epoch)
        older = (left - self.decay) ** 2 * (1 - left ** (2 * earlier)) / (1 - left**2)
        return np.asarray(own**2 * (1 + older), np.float64)

    def _beyond_a_quarter(self, length: int) -> float:
        a, b = self.boost, self.decay
        return a * (1 - b**length) / (1 - b) + a**2 * (1 - b ** (2 * length)) / (1 - b**2)
