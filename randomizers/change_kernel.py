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

    def clock(self, last_epoch: int, changes: int, rounding: float = 0.0) -> float:
        """The most that (|u| + rounding)^2 adds up to, for streams with so many boosted changes.

        Changes alternate in sign and what is left of one falls, so |u| is at most 1/2 + a b^l, l
        epochs after the last of them; the sum over a segment between two is concave in its length,
        so equal lengths have the most.
        """
        segments, least = min(changes, last_epoch), 0.5 + rounding
        short, longer = divmod(last_epoch, segments)
        beyond = (segments - longer) * self._of_a_change(short, least)
        if longer:
            beyond += longer * self._of_a_change(short + 1, least)
        return last_epoch * least**2 + beyond

    def variances(self, last_epoch: int) -> NDArray[np.float64]:
        """Of estimates, for letters of variance 1, all devices present: shape (last_epoch,).

        An estimate is a sum of what came in at the epochs up to its own, of which that of l epochs
        ago has the weight h_l: 1 / (1 + a), then (q - b) q^(l-1) / (1 + a), q = (a + b) / (1 + a).
        """
        own, left = 1 / (1 + self.boost), self.left
        earlier = np.arange(last_epoch)
        older = (left - self.decay) ** 2 * (1 - left ** (2 * earlier)) / (1 - left**2)
        return np.asarray(own**2 * (1 + older), np.float64)

    def _of_a_change(self, length: int, least: float) -> float:
        """What (least + a b^l)^2 - least^2 adds up to, in so many epochs from a change on."""
        a, b = self.boost, self.decay
        first, second = (1 - b**length) / (1 - b), (1 - b ** (2 * length)) / (1 - b**2)
        return 2 * least * a * first + a**2 * second
