"""What to expect of a protocol's estimates before there is any data."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import FreezingModel
from dpstream.randomizers.cell_codes.prefixes import PrefixLevel

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
class DividedForecast(Forecast, typing.Protocol):
    """Of a protocol that knows what its messages are worth to one of several shuffle instances."""

    def among(self, instances: int, *, sealed: bool) -> Forecast:
        """The same, with so many shuffle instances side by side.

        Args:
            instances: at least 2.
            sealed: whether messages are, to whoever adds them up.
        """
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
class BoostedForecast(Forecast, typing.Protocol):
    """Of a protocol whose devices may boost the changes they follow."""

    @property
    def boost(self) -> int:
        """How many more real messages than one a device sends; 0 where no change is followed."""
        ...


@typing.runtime_checkable
class BoundedForecast(Forecast, typing.Protocol):
    """Of a protocol whose paper bounds the largest of all errors."""

    def published_bound(self, users: int, exceeded: float) -> float:
        """What no error of all epochs exceeds but with this probability, in users."""
        ...


@typing.runtime_checkable
class SearchedForecast(Forecast, typing.Protocol):
    """Of a protocol that may search a domain too large to be listed."""

    def found_caveats(self, users: int) -> tuple[str, ...]:
        """How many of so many users have to hold an item for it to be found, in sentences."""
        ...


def found_caveat(levels: tuple[PrefixLevel, ...], users: int, variance: float, items: int) -> str:
    """How many users have to hold an item for a search of its prefixes to find it."""
    # Nothing that a device runs imports the accounting.
    from dpstream.randomizers.accounting.prefix_levels import predict

    found = predict(levels, users, variance, items)
    if found is None:
        return f"with {users:,} users no item is found if counts are as skewed as Zipf's law"
    return (
        f"of {users:,} users about {math.ceil(found[0]):,} have to hold an item to be found "
        "if counts are as skewed as Zipf's law; of nearly equal counts fewer are found, and "
        "`query --top` says from which count on every item is listed"
    )


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
