"""Kernel that tracks changes: its privacy cost to a device, and the estimates' variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernel of changes: `boost` a added to u, and `decay` b, the share left per epoch."""

    boost: float
    decay: float

    @property
    def left(self) -> float:
        """q, the per-epoch share of an unboosted change that estimates still lack."""
        return (self.boost + self.decay) / (1 + self.boost)

    def squared_norm_budget(
        self, last_epoch: int, max_changes: int, rounding: float = 0.0
    ) -> float:
        """Return the maximum of the sum of (|u| + rounding)^2, with `max_changes` boosted changes.

        Changes alternate in sign and the remainder of each decays, so |u| is at most 1/2 + a b^l, l
        epochs after the last change. The sum over a segment between two changes is concave in its
        length, so equal lengths maximize it.
        """
        segments, least = min(max_changes, last_epoch), 0.5 + rounding
        short, longer = divmod(last_epoch, segments)
        beyond = (segments - longer) * self._of_a_change(short, least)
        if longer:
            beyond += longer * self._of_a_change(short + 1, least)
        return last_epoch * least**2 + beyond

    def variances(self, last_epoch: int) -> NDArray[np.float64]:
        """Return the variances of estimates for symbols of variance 1; shape (last_epoch,).

        All devices are present. An estimate is a weighted sum of the input of the epochs up to its
        own. The input of l epochs ago has the weight h_l: 1 / (1 + a), then
        (q - b) q^(l-1) / (1 + a), with q = (a + b) / (1 + a).
        """
        own, left = 1 / (1 + self.boost), self.left
        earlier = np.arange(last_epoch)
        older = (left - self.decay) ** 2 * (1 - left ** (2 * earlier)) / (1 - left**2)
        return np.asarray(own**2 * (1 + older), np.float64)

    def _of_a_change(self, length: int, least: float) -> float:
        """Return the sum of (least + a b^l)^2 - least^2 over `length` epochs from a change."""
        a, b = self.boost, self.decay
        first, second = (1 - b**length) / (1 - b), (1 - b ** (2 * length)) / (1 - b**2)
        return 2 * least * a * first + a**2 * second
