"""Emphasis that fades after a change: its privacy cost, and the variance of estimates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Kernel:
    """Emphasis of a change: `boost` a is added to u; a fraction b (`decay`) is left per epoch."""

    boost: float
    decay: float

    @property
    def left(self) -> float:
        """q, the factor by which the missing part of an unboosted change shrinks per epoch."""
        return (self.boost + self.decay) / (1 + self.boost)

    def squared_norm_budget(
        self, last_epoch: int, max_changes: int, rounding: float = 0.0
    ) -> float:
        """Return the maximum sum of (|u| + rounding)^2 over epochs, with `max_changes` boosts.

        Changes that alternate in sign attain the maximum. The boost of each change decays, so l
        epochs after the last change, |u| is at most 1/2 + a b^l. The sum over a segment between two
        changes is concave in the segment's length, so segments of equal length maximize the total.
        """
        segments, least = min(max_changes, last_epoch), 0.5 + rounding
        short, longer = divmod(last_epoch, segments)
        beyond = (segments - longer) * self._of_a_change(short, least)
        if longer:
            beyond += longer * self._of_a_change(short + 1, least)
        return last_epoch * least**2 + beyond

    def variances(self, last_epoch: int) -> NDArray[np.float64]:
        """Return the variances of estimates for symbols of variance 1; shape (last_epoch,).

        All devices are assumed present. An estimate is a weighted sum of the inputs up to its
        epoch. The input l epochs earlier has the weight h_l. Here h_0 = 1 / (1 + a), and h_l =
        (q - b) q^(l-1) / (1 + a) for l > 0, with q = (a + b) / (1 + a).
        """
        own, left = 1 / (1 + self.boost), self.left
        earlier = np.arange(last_epoch)
        older = (left - self.decay) ** 2 * (1 - left ** (2 * earlier)) / (1 - left**2)
        return np.asarray(own**2 * (1 + older), np.float64)

    def window_variances(self, last_epoch: int, window: int) -> NDArray[np.float64]:
        """Return the variances of sums of `window` consecutive estimates; see `variances`.

        The windows end with the epochs from `window` to `last_epoch`. An input that lies l epochs
        before a window's last epoch has the weight h_l + ... + h_(l-window+1) in the sum.
        """
        own, left = 1 / (1 + self.boost), self.left
        later = own * (left - self.decay) * left ** np.arange(last_epoch - 1)
        sums = np.cumsum(np.concatenate([[own], later]))
        sums[window:] -= sums[:-window].copy()
        return np.asarray(np.cumsum(np.square(sums))[window - 1 :], np.float64)

    def _of_a_change(self, length: int, least: float) -> float:
        """Return the sum of (least + a b^l)^2 - least^2 over l = 0, ..., `length` - 1."""
        a, b = self.boost, self.decay
        first, second = (1 - b**length) / (1 - b), (1 - b ** (2 * length)) / (1 - b**2)
        return 2 * least * a * first + a**2 * second
