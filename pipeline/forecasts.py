"""What to expect of a protocol's estimates before there is any data."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aggregators.dyadic_aggregator import Estimator
from aggregators.epoch_responses import ResponseLaw, response_variance
from aggregators.freezing import FreezingModel
from aggregators.future_rand import predicted_smoothed_variances, predicted_variances
from randomizers.future_rand import FutureRandLaw
from randomizers.hadamard_stream import HadamardStreamLaw
from randomizers.memoized_response import MemoizedResponseLaw
from randomizers.split_budget import SplitBudgetLaw

NORMAL_ERROR = math.sqrt(2 / math.pi)
"""The mean absolute error of a normal one, in standard deviations."""


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


@typing.runtime_checkable
class DyadicForecast(Forecast, typing.Protocol):
    """Of a protocol whose reports are on dyadic intervals."""

    @property
    def horizon(self) -> int:
        """The number of epochs, rounded up to a power of two."""
        ...


@typing.runtime_checkable
class SmoothedForecast(Forecast, typing.Protocol):
    """Of a protocol whose estimates can be smoothed over the whole horizon."""

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimates, in users, shape (epochs,)."""
        ...


@typing.runtime_checkable
class FreezingForecast(Forecast, typing.Protocol):
    """Of a protocol for values 0 and 1 that follows so many changes of each user and no more."""

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        ...


@typing.runtime_checkable
class CellForecast(Forecast, typing.Protocol):
    """Of a protocol that counts the items of every epoch by itself, in cells with noise.

    All epochs are alike. Errors are mean absolute ones, in users, over the hundred items that most
    users hold and four hundred others; estimates below 0 are taken for 0, which counts are at
    least. Counts follow Zipf's law unless others are given.
    """

    @property
    def cells(self) -> str:
        """What is counted, in words."""
        ...

    def predicted_error(self, users: int) -> float:
        """With noise and whatever other items do."""
        ...

    def noise_error(self, users: int) -> float:
        """With noise alone."""
        ...

    def like(self, held: NDArray[np.float64]) -> Self:
        """The same for items of which these shares of the users hold each, in any order."""
        ...


class FutureRandForecast:
    """FutureRand's dyadic intervals, combined or not, when everybody reports.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
        estimator: of the job.
    """

    def __init__(self, law: FutureRandLaw, last_epoch: int, estimator: Estimator = "tree") -> None:
        epochs = np.arange(1, last_epoch + 1)
        self.horizon = law.horizon
        self._law, self._estimator = law, estimator
        self._unit_variances = predicted_variances(law, last_epoch, estimator)
        self.reports_per_user = np.zeros(last_epoch)
        for order, probability in enumerate(law.order_probabilities):
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

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates smoothed over the whole horizon, in users, shape (epochs,)."""
        last_epoch = len(self._unit_variances)
        return np.sqrt(users * predicted_smoothed_variances(self._law, last_epoch))

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        return model.bias(self._law, self._estimator)


class HadamardStreamForecast:
    """Every item's standard deviation is twice that of a Boolean with the same signs.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
        estimator: of the job.
    """

    def __init__(
        self, law: HadamardStreamLaw, last_epoch: int, estimator: Estimator = "tree"
    ) -> None:
        self._boolean = FutureRandForecast(law.future_rand, last_epoch, estimator)
        self.horizon = self._boolean.horizon
        self.reports_per_user = self._boolean.reports_per_user
        self.constants = self._boolean.constants
        self.caveats = (
            "the errors are those of each of the items, and do not depend on how many there are",
            _freezing(law),
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimate of each item, in users, shape (epochs,)."""
        return 2 * self._boolean.standard_deviations(users)

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the smoothed estimate of each item, in users, shape (epochs,)."""
        return 2 * self._boolean.smoothed_standard_deviations(users)


def _freezing(law: HadamardStreamLaw) -> str:
    """Who freezes. A change of item uses a sign up in half of the rows only."""
    bias = "what is then missed of it biases the estimates, and is not in the predicted errors"
    missing = law.changes + 1 - law.signs
    if missing <= 0:
        return f"a user whose item changes more than {law.changes} times may freeze: {bias}"
    # Between two items a device flips every time, or not at all but for its first item.
    alternating = "25 %" if missing == 1 else "50 %"
    return (
        f"{law.signs} flips of what a device tracks are followed; of the users whose item changes "
        f"{law.changes} times {law.frozen_share:.2%} need more and freeze if each change is to "
        f"another item chosen at random, and {alternating} if they go back and forth between two: "
        f"{bias}"
    )


class EpochResponsesForecast:
    """One bit of every device at every epoch: all estimates are equally good.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    caveats: tuple[str, ...] = ()
    constants: tuple[Mapping[str, int | float], ...]

    def __init__(self, law: ResponseLaw, last_epoch: int) -> None:
        self._law = law
        self.reports_per_user = np.ones(last_epoch)
        self.constants = ({"epochs": law.last_epoch, "c_gap": law.c_gap},)

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        variance = response_variance(self._law, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


class SplitBudgetForecast(EpochResponsesForecast):
    """What an epoch has of the budget, beside what all have."""

    def __init__(self, law: SplitBudgetLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.constants = ({**self.constants[0], "epsilon": law.response.loss},)


class MemoizedResponseForecast(EpochResponsesForecast):
    """The two responses and what a whole stream loses."""

    caveats = (
        "estimates of different epochs rest on the same permanent responses: averaging over epochs "
        "does not take their error away",
        "the guarantee is for values that never change; whole streams lose what stream_epsilon "
        "says, and budgets are charged with that",
    )

    def __init__(self, law: MemoizedResponseLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.constants = (
            {
                **self.constants[0],
                "permanent_epsilon": law.permanent.loss,
                "instantaneous_epsilon": law.instantaneous.loss,
                "stream_epsilon": law.stream_loss,
            },
        )
