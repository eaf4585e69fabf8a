"""Forecasts of protocols whose devices report once per epoch and track changes of their values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import FreezingModel
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw


class FollowedForecast(ABC):
    def __init__(self, kernel: Kernel, max_changes: int, last_epoch: int) -> None:
        self._kernel, self._max_changes, self._last_epoch = kernel, max_changes, last_epoch
        self.reports_per_user = np.ones(last_epoch)
        self.notes: tuple[str, ...] = ()
        if kernel.boost:
            self.notes = (
                f"only the first {max_changes} changes of a user are boosted, and only those made "
                "while the user's value is known: of any other change, the fraction "
                f"{kernel.left:.3f}^m is missing m epochs later, which biases the estimates and "
                "is not in the predicted errors",
            )

    @abstractmethod
    def standard_errors(self, users: int) -> NDArray[np.float64]:
        """Return the standard errors of the estimates, in users, shape (epochs,)."""

    def smoothed_standard_errors(self, users: int) -> NDArray[np.float64]:
        return self.standard_errors(users)

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Return the bias per user from changes that are not boosted, shape (epochs,)."""
        own, bias, biases = 1 / (1 + self._kernel.boost), 0.0, []
        # Expected sum of the changes that are not boosted, by epoch.
        for unboosted in np.diff(model.missed(order=0, signs=self._max_changes)).tolist():
            bias = self._kernel.left * bias - self._kernel.boost * own * unboosted
            biases.append(bias)
        return np.array(biases)


class ValueStreamForecast(FollowedForecast):
    def __init__(self, law: ValueStreamLaw, last_epoch: int) -> None:
        super().__init__(Kernel(law.boost, law.decay), law.max_changes, last_epoch)
        self._unit = law.squared_norm_budget / law.gain**2
        self.constants = (
            {
                "epochs": law.last_epoch,
                "max_changes": law.max_changes,
                "boost": law.boost,
                "decay": law.decay,
                "squared_norm_budget": law.squared_norm_budget,
                "gain": law.gain,
                "noise": law.probability_of_noise,
                "epsilon": law.loss,
            },
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.sqrt(users * self._unit * self._kernel.variances(self._last_epoch))

    def window_error(self, users: int, window: int) -> float | None:
        variances = self._kernel.window_variances(self._last_epoch, window)[::window]
        return math.sqrt(users * self._unit * float(variances.mean())) / window


class HadamardValuesForecast:
    def __init__(self, law: HadamardValuesLaw, last_epoch: int) -> None:
        self._boolean = ValueStreamForecast(law.booleans, last_epoch)
        self.reports_per_user = self._boolean.reports_per_user
        self.constants = self._boolean.constants
        self.notes = (
            "predicted errors are for an item that few users have, independent of the number of "
            "items",
            flips_note(law.max_changes, law.booleans.max_changes, law.unboosted_share, "item"),
            *self._boolean.notes,
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        symbols = 2 * self._boolean.standard_errors(users)
        # A user with another item adds or subtracts one, depending on the row.
        return np.hypot(symbols, np.sqrt(users))

    def smoothed_standard_errors(self, users: int) -> NDArray[np.float64]:
        return self.standard_errors(users)

    def window_error(self, users: int, window: int) -> float | None:
        """Return the RMSE of means over windows, for users who keep the same item within a window.

        The error from rows is then the same at all epochs of the window.
        """
        boolean = self._boolean.window_error(users, window)
        return None if boolean is None else math.hypot(2 * boolean, math.sqrt(users))


def flips_note(max_changes: int, boosted: int, share: float, value: str) -> str:
    if boosted > max_changes:
        return f"all flips of a user whose {value} changes at most {max_changes} times are boosted"
    return (
        f"a device boosts {boosted} flips of its bit; of the users whose {value} changes "
        f"{max_changes} times, {share:.2%} have more flips if each change is to a random other "
        f"{value}"
    )
