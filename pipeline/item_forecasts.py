"""What to expect of counts of items at epochs that stand alone, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators import hadamard, single_message
from randomizers.hadamard import HadamardLaw
from randomizers.row_errors import normal_errors, usual_error, zipf_counts
from randomizers.single_message import SingleMessageLaw

_COUNTED = 100_000


class HadamardForecast:
    """Tuples about other items, and the blanket, that lie in the set of an item.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: the shares of the users that hold each item, in any order; None: those of Zipf's law,
            if everybody holds as many items as are allowed.
    """

    def __init__(
        self, law: HadamardLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        self._law, self._last_epoch = law, last_epoch
        self._held = zipf_counts(min(law.items, _COUNTED), law.slots) if held is None else held
        form = law.word_form
        self.cells = f"tuples of {law.rows} columns of a Hadamard matrix of size {law.columns:,}"
        self.reports_per_user = np.full(last_epoch, law.slots + law.blanket)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "rows": law.rows,
                "columns": law.columns,
                "blanket": law.blanket,
                "dummies": law.blanket * law.minimum * law.overlap,
                "bytes_per_user": form.report_bytes * (law.slots + law.blanket),
            },
        )
        self.caveats = (
            "the errors are those of an item that few hold; one that many hold is estimated better",
            f"every user adds a blanket, sized on shuffle.minimum, {law.minimum:,}: the closer it "
            "is to the number of users, the smaller the errors",
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return np.full(self._last_epoch, self._deviation(users, self._law.slots))

    def predicted_error(self, users: int) -> float:
        """See `CellForecast.predicted_error`."""
        return self._usual(self._deviation(users, self._law.slots), users)

    def noise_error(self, users: int) -> float:
        """What it would be without tuples about other items."""
        return self._usual(self._deviation(users, 0), users)

    def like(self, held: NDArray[np.float64]) -> HadamardForecast:
        """The same: everybody sends as many tuples, whatever is held."""
        return HadamardForecast(self._law, self._last_epoch, held)

    def _usual(self, deviation: float, users: int) -> float:
        return usual_error(normal_errors(deviation), users * self._held)

    def _deviation(self, users: int, messages: int) -> float:
        others = users * (messages + self._law.blanket)
        return math.sqrt(hadamard.noise_variance(self._law, others))


class SingleMessageForecast:
    """Messages that speak for an item although their users do not hold it.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: the shares of the users that hold each item, in any order; None: those of Zipf's law,
            if everybody holds as many items as are allowed.
    """

    def __init__(
        self, law: SingleMessageLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        self._law, self._last_epoch = law, last_epoch
        self._held = zipf_counts(min(law.items, _COUNTED), law.slots) if held is None else held
        kept, other = map(float, law.probabilities)
        self.cells = (
            f"a bit for each of {law.items:,} items"
            if law.bits
            else f"one of {law.items + 1:,} symbols, the items and none"
        )
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "local_epsilon": law.local_epsilon,
                "kept": kept,
                "false": other,
                "bytes_per_user": law.word_form.report_bytes,
            },
        )
        self.caveats = (
            "the errors are those of an item that few hold, and grow with the users; symbols of an "
            "item that many hold are estimated worse",
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return np.full(self._last_epoch, self._deviation(users))

    def predicted_error(self, users: int) -> float:
        """See `CellForecast.predicted_error`."""
        return usual_error(normal_errors(self._deviation(users)), users * self._held)

    def noise_error(self, users: int) -> float:
        """The same: what others say is the noise."""
        return self.predicted_error(users)

    def like(self, held: NDArray[np.float64]) -> SingleMessageForecast:
        """The same: everybody sends a message, whatever is held."""
        return SingleMessageForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        variance = single_message.noise_variance(self._law, users, holders=0)
        return math.sqrt(variance)
