"""What to expect of a protocol's estimates before there is any data."""

from __future__ import annotations

import typing
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators.future_rand import predicted_standard_deviation
from randomizers.future_rand import FutureRandLaw


class Forecast(typing.Protocol):
    """Expectations for every epoch of a job, when every enrolled device reports."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the figures leave out, in sentences."""
        ...

    @property
    def reports_per_user(self) -> NDArray[np.float64]:
        """Expected number of reports that a device sends, shape (epochs,)."""
        ...

    @property
    def constants(self) -> tuple[Mapping[str, int | float], ...]:
        """The calibrated constants as a table: its rows, by column."""
        ...

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        ...


class FutureRandForecast:
    """Algorithm 2 of "Randomize the Future": an estimate adds up independent dyadic intervals.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
    """

    def __init__(self, law: FutureRandLaw, last_epoch: int) -> None:
        epochs = np.arange(1, last_epoch + 1)
        self._unit_variances = np.zeros(last_epoch)
        self.reports_per_user = np.zeros(last_epoch)
        for order, probability in enumerate(law.order_probabilities):
            # The epochs 1 to 2^order are one interval of that order, and variances add up.
            variance = predicted_standard_deviation(law, 1 << order, users=1) ** 2
            self._unit_variances[(epochs >> order) & 1 == 1] += variance
            self.reports_per_user[epochs % (1 << order) == 0] += probability
        self.constants = tuple(
            {
                "order": order,
                "epochs": 1 << order,
                "probability": law.order_probabilities[order],
                "changes": composed.k,
                "c_gap": law.c_gaps[order],
                "epsilon": composed.loss,
            }
            for order, composed in enumerate(law.composed)
        )
        self.caveats = (
            f"a user with more than {law.composed[0].k} changes freezes: what is then missed of it "
            "biases the estimates, and is not in the predicted errors",
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        return np.sqrt(users * self._unit_variances)
