"""What to expect of counts of items at epochs that stand alone, before there is any data."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators import hadamard, single_message
from pipeline.held_forecast import HeldForecast
from randomizers.hadamard import HadamardLaw
from randomizers.single_message import SingleMessageLaw


class HadamardForecast(HeldForecast):
    """Tuples about other items, and the blanket, that lie in the set of an item.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: see `HeldForecast`.
    """

    def __init__(
        self, law: HadamardLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
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

    def like(self, held: NDArray[np.float64]) -> HadamardForecast:
        """The same: everybody sends as many tuples, whatever is held."""
        return HadamardForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        return self._with_messages(users, self._law.slots)

    def _noise_deviation(self, users: int) -> float:
        return self._with_messages(users, 0)

    def _with_messages(self, users: int, messages: int) -> float:
        others = users * (messages + self._law.blanket)
        return math.sqrt(hadamard.noise_variance(self._law, others))


class SingleMessageForecast(HeldForecast):
    """Messages that speak for an item although their users do not hold it.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: see `HeldForecast`.
    """

    def __init__(
        self, law: SingleMessageLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
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

    def like(self, held: NDArray[np.float64]) -> SingleMessageForecast:
        """The same: everybody sends a message, whatever is held."""
        return SingleMessageForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        variance = single_message.noise_variance(self._law, users, holders=0)
        return math.sqrt(variance)
