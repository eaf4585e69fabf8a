"""Forecasts of the errors in a protocol's estimates, available before any data exist."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import FreezingModel
from dpstream.randomizers.cell_codes.prefixes import PrefixLevel

NORMAL_ERROR = math.sqrt(2 / math.pi)
"""Mean absolute value of a Gaussian error, relative to its standard deviation."""


class Forecast(typing.Protocol):
    """Forecast for every epoch of a job when every enrolled device reports."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about effects that the forecast does not include."""

    @property
    def reports_per_user(self) -> NDArray[np.float64]:
        """Expected number of reports per device at each epoch, shape (epochs,)."""

    @property
    def constants(self) -> tuple[Mapping[str, int | float], ...]:
        """Calibrated constants as table rows, by column."""

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        """Return the standard errors of the estimates, in users, shape (epochs,)."""


@typing.runtime_checkable
class DividedForecast(Forecast, typing.Protocol):
    """Forecast that also states what messages reveal to one of several parallel shufflers."""

    def among(self, instances: int, *, sealed: bool) -> Forecast:
        """Return the forecast for several parallel shufflers; `sealed` hides messages from them."""


@typing.runtime_checkable
class DyadicForecast(Forecast, typing.Protocol):
    @property
    def horizon(self) -> int:
        """Number of epochs, rounded up to a power of two."""


@typing.runtime_checkable
class SmoothedForecast(Forecast, typing.Protocol):
    def smoothed_standard_errors(self, users: int) -> NDArray[np.float64]:
        """Return the standard errors of the smoothed estimates, in users, shape (epochs,)."""


@typing.runtime_checkable
class WindowForecast(Forecast, typing.Protocol):
    def window_error(self, users: int, window: int) -> float | None:
        """Return the RMSE of means over `window` epochs, in users; None if it is unknown."""


@typing.runtime_checkable
class ShareForecast(Forecast, typing.Protocol):
    """Forecast of errors that depend on the share of users with the value.

    Attributes:
        share: Share of users, from 0 to 1, for which errors are predicted.
    """

    share: float

    def at_share(self, share: float) -> Self:
        """Return the forecast for another share of users."""


@typing.runtime_checkable
class BoostedForecast(Forecast, typing.Protocol):
    @property
    def boost(self) -> int:
        """Number of real messages that a device adds to its first message; 0 without boosting."""


@typing.runtime_checkable
class BoundedForecast(Forecast, typing.Protocol):
    def published_bound(self, users: int, exceeded: float) -> float:
        """Return a bound on all errors, in users, that holds with probability 1 - `exceeded`."""


@typing.runtime_checkable
class SearchedForecast(Forecast, typing.Protocol):
    def detection_notes(self, users: int) -> Iterable[str]: ...


def detection_note(levels: tuple[PrefixLevel, ...], users: int, variance: float, items: int) -> str:
    # Imported here because devices load this module and must not import `accounting`.
    from dpstream.randomizers.accounting.prefix_levels import predict

    found = predict(levels, users, variance, items)
    if found is None:
        return f"with {users:,} users no item is found if counts are as skewed as Zipf's law"
    return (
        f"of {users:,} users, about {math.ceil(found[0]):,} must have an item for it to be found "
        "if counts are as skewed as Zipf's law; if counts are nearly equal, fewer items are "
        "found. `query --top` prints the count above which every item is listed"
    )


def bucket_notes(low: float, high: float, buckets: int, widest: float) -> tuple[str, str]:
    """Describe buckets; `widest` bounds a range's standard error relative to a bucket's."""
    return (
        f"values are in {buckets:,} buckets, each {(high - low) / buckets:.6g} wide",
        "predicted errors are for a single bucket; the error of a wide range is at most "
        f"{widest:.1f} times as large",
    )


@typing.runtime_checkable
class FreezingForecast(Forecast, typing.Protocol):
    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Return the expected value, per user, of estimate minus ground truth, shape (epochs,)."""


@typing.runtime_checkable
class CellForecast(Forecast, typing.Protocol):
    """Forecast of a protocol that counts items separately at every epoch, in noisy cells.

    All epochs are equally accurate. Errors are mean absolute errors, in users, over the 100 most
    frequent items and 400 others, with negative estimates clipped to 0. Counts are assumed to
    follow Zipf's law unless `like` sets other fractions.
    """

    @property
    def cells(self) -> str: ...

    def predicted_error(self, users: int) -> float:
        """Return the error from noise and from other items in the same cells."""

    def noise_error(self, users: int) -> float: ...

    def like(self, held: NDArray[np.float64]) -> Self:
        """Return the forecast if `held` has the fraction of users with each item, in any order."""
