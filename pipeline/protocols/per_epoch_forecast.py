"""What to expect of counts of items at epochs that stand alone: what such forecasts share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.row_errors import normal_errors, usual_error, zipf_counts

_COUNTED = 100_000


class PerEpochForecast(ABC):
    """Every epoch is as good as the others, if as many users contribute.

    Args:
        last_epoch: how many epochs it is about.
        size: how many items there are.
        items: the most that a user holds.
        held: the shares of the users that hold each item, in any order, which says how skewed they
            are; None: those of Zipf's law, if everybody holds as many items as are allowed.
    """

    def __init__(
        self, last_epoch: int, size: int, items: int, held: NDArray[np.float64] | None
    ) -> None:
        self._last_epoch = last_epoch
        self._held = zipf_counts(min(size, _COUNTED), items) if held is None else held

    @abstractmethod
    def _deviation(self, users: int) -> float:
        """Standard deviation of the estimate of an item, in users."""

    def _noise_deviation(self, users: int) -> float:
        return self._deviation(users)

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return np.full(self._last_epoch, self._deviation(users))

    def predicted_error(self, users: int) -> float:
        """See `CellForecast.predicted_error`."""
        return self._usual(normal_errors(self._deviation(users)), users)

    def noise_error(self, users: int) -> float:
        """See `CellForecast.noise_error`."""
        return self._usual(normal_errors(self._noise_deviation(users)), users)

    def _usual(self, errors: NDArray[np.float64], users: int) -> float:
        return usual_error(errors, users * self._held)
