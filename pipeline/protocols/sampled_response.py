"""Registry entry and forecast of sampled_response: answers at few epochs; trusted party: none."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.change_errors import ChangeErrors, RetainedErrors, SampledChanges
from dpstream.aggregators.epoch_responses import SampledResponseAggregator
from dpstream.aggregators.item_covariances import ItemCovariances, set_covariances
from dpstream.aggregators.range_estimates import Ends
from dpstream.aggregators.sampled_items import SampledItemsAggregator, sampled_items
from dpstream.aggregators.sampled_numbers import (
    SampledNumbersAggregator,
    asked_level,
    sampled_numbers,
)
from dpstream.aggregators.sampled_prefixes import SampledPrefixesAggregator
from dpstream.aggregators.sampled_ranges import SampledRanges
from dpstream.aggregators.window_errors import IndependentWindows
from dpstream.pipeline.protocols.forecasts import Forecast, bucket_notes
from dpstream.pipeline.protocols.late_calibration import late, late_plan
from dpstream.pipeline.protocols.protocol import (
    DELTA,
    Aggregation,
    Aggregator,
    Example,
    LawReader,
    Planning,
    Protocol,
)
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.sets import SetDomain
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.randomizers.guarantee import Guarantee, shuffle_to_mix
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponse,
    LeveledResponseLaw,
    node_variance,
)
from dpstream.randomizers.value_tree import widest_range

_unit_variance = late("sampled_response", "unit_variance")
_calibrate = late("sampled_response", "calibrate_any")
_epsilon_if_shuffled = late("sampled_response", "epsilon_of_any_if_shuffled")
_expected_share = late("sampled_response", "expected_share")
_search_forecast = late_plan("sampled_searches", "SearchForecast")

_COMPLETE: Final = (
    "every user is assumed to have {0}; one without counts as 1/{1} of a user for each of the {1} "
    "{2}s"
)


class _EqualEpochs:
    """Forecast in which all epochs are equally accurate, because all enrolled devices answer."""

    share: float

    def __init__(self, law: SampledResponseLaw | LeveledResponseLaw, last_epoch: int) -> None:
        self._horizon, self._reports = law.last_epoch, law.reports
        self.reports_per_user = np.full(last_epoch, law.reports / law.last_epoch)

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.full(len(self.reports_per_user), self._deviation(users))

    def window_error(self, users: int, window: int) -> float | None:
        if window * self._reports > self._horizon:
            return None
        return self._deviation(users) / math.sqrt(window)

    def at_share(self, share: float) -> Self:
        other = copy(self)
        other.share = share
        return other

    @abstractmethod
    def _deviation(self, users: int) -> float:
        """Return the standard error of an epoch's estimate."""


class SampledResponseForecast(_EqualEpochs):
    def __init__(
        self, law: SampledResponseLaw, requested: SampledResponseParameters, last_epoch: int
    ) -> None:
        super().__init__(law, last_epoch)
        self._law, self.share = law, _expected_share(requested)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "answers": law.reports,
                "c_gap": law.c_gap,
                "epsilon": law.flips.loss,
            },
        )
        self.notes = (
            self._by_share(requested),
            *self._limited_by_recurrence(requested),
            *((_COMPLETE.format("an item", law.items, "item"),) if law.complete else ()),
        )

    def _by_share(self, requested: SampledResponseParameters) -> str:
        if requested.domain is None:
            return (
                f"errors are predicted for a value that {self.share:.3g} of the users have; at "
                f"0.5 they are {self._times(0.5):.3g} times as large"
            )
        if requested.items > 1:
            return (
                f"errors are predicted for an item that one in {self._law.items:,} users has; an "
                f"answer is about one of {requested.items:,} slots, which makes errors up "
                f"to {requested.items:,} times as large as for one item"
            )
        return (
            f"errors are predicted for an item that one in {self._law.items:,} users has; for an "
            f"item that few have they are {self._times(0.0):.3g} times as large, and for one that "
            f"half of the users have {self._times(0.5):.3g} times"
        )

    def _times(self, share: float) -> float:
        return math.sqrt(_unit_variance(self._law, share) / _unit_variance(self._law, self.share))

    def _limited_by_recurrence(self, requested: SampledResponseParameters) -> Iterator[str]:
        if requested.reports is not None:
            return
        once = _calibrate(requested, self._law.last_epoch)
        if once.reports > self._law.reports:
            ratio = math.sqrt(
                _unit_variance(self._law, self.share) / _unit_variance(once, self.share)
            )
            yield (
                "a recurring job asks each device once in a horizon; without epochs.renew it would "
                f"ask {once.reports} times, and errors would be {ratio:.3g} times smaller"
            )

    def _deviation(self, users: int) -> float:
        return math.sqrt(users * _unit_variance(self._law, self.share, users))


class SampledNumbersForecast(_EqualEpochs):
    """Forecast for numbers: of the first bucket, with `share`; all others are equally full."""

    def __init__(
        self, law: LeveledResponseLaw, requested: SampledResponseParameters, last_epoch: int
    ) -> None:
        assert requested.numbers is not None
        super().__init__(law, last_epoch)
        self._law, self.share = law, 1 / law.items
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "level": number,
                "nodes": level.items,
                "points": level.sets.points,
                "own": float(level.probabilities[0]),
                "other": float(level.probabilities[1]),
                "epsilon": level.loss,
            }
            for number, level in enumerate(law.levels, start=1)
        )
        numbers = requested.numbers
        variances = {level.items: node_variance(level) for level in law.levels}
        nodes = (2 << index for index in range(law.items.bit_length() - 1))
        widest = widest_range(np.array([variances.get(each, math.inf) for each in nodes]))
        rare, half = (self.at_share(share)._deviation(10_000) for share in (1e-9, 0.5))
        own = self._deviation(10_000)
        self.notes = (
            *bucket_notes(numbers.low, numbers.high, numbers.buckets, widest),
            f"errors are predicted for a bucket that one in {law.items:,} users is in; for a "
            f"bucket that few are in they are {rare / own:.3g} times as large, and for one that "
            f"half of the users are in {half / own:.3g} times",
            _COMPLETE.format("a value", law.items, "bucket"),
        )

    def _deviation(self, users: int) -> float:
        return float(self.range_deviations(users, 0, 1))

    def range_deviations(self, users: int, starts: Ends, ends: Ends) -> NDArray[np.float64]:
        """Return the standard errors for ranges of buckets [start, end), numbered from 0."""
        return np.asarray(np.sqrt(self._expected(users).variances(starts, ends)), np.float64)

    def _expected(self, users: int) -> SampledRanges:
        law = self._law
        asked = users / law.last_epoch / len(law.levels)
        others = (1 - self.share) / max(1, law.items - 1)
        shares = np.array([self.share, *[others] * (law.items - 1)])
        return SampledRanges.of(
            users * shares,
            tuple(asked_level(level, asked, users) for level in law.levels),
            round(users / law.last_epoch),
            users,
        )


def _forecast(
    law: SampledResponseLaw | LeveledResponseLaw,
    requested: SampledResponseParameters,
    last_epoch: int,
) -> Forecast:
    if requested.searched:
        forecast: Forecast = _search_forecast(law, requested, last_epoch)
        return forecast
    if isinstance(law, LeveledResponseLaw):
        return SampledNumbersForecast(law, requested, last_epoch)
    return SampledResponseForecast(law, requested, last_epoch)


def _recurring(requested: SampledResponseParameters) -> SampledResponseParameters:
    if requested.reports not in (None, 1):
        raise ValueError(
            f"reports is {requested.reports}; expected 1 in a recurring job: a device's "
            "answers share one noise distribution, so epochs in two different horizons would "
            "together cost more than epsilon. Remove 'reports', or 'epochs.renew'"
        )
    return replace(requested, reports=1)


def _changes(law: SampledResponseLaw, requested: object, lag: int) -> ChangeErrors | None:
    if law.reports == 1 and lag % law.last_epoch == 0:
        # The same devices answer, with independent flips: too wide where their values persist,
        # and at most sqrt(2) times too narrow if they all change.
        return RetainedErrors(lag, kept=0.0)
    # None if some devices answer at both epochs: their flips are correlated.
    twice = {(later - each) % law.last_epoch for later in law.offsets for each in law.offsets}
    return None if lag % law.last_epoch in twice else SampledChanges(lag)


def _window_changes(law: SampledResponseLaw, window: int, lag: int) -> ChangeErrors | None:
    longest = law.last_epoch // law.reports
    if law.reports == 1 and window <= longest and lag * window % law.last_epoch == 0:
        # The same devices answer in both windows, with independent flips.
        return RetainedErrors(lag, kept=0.0)
    # No device answers twice in both windows and the epochs between them.
    return SampledChanges(lag, window) if (lag + 1) * window <= longest else None


def _values(requested: SampledResponseParameters) -> ValueDomain:
    numbers = requested.numbers
    if numbers is not None:
        return NumericDomain(numbers.low, numbers.high, numbers.buckets, requested.initial)
    if requested.domain is None:
        return BOOLEAN
    return SetDomain(requested.domain, None if requested.items == 1 else requested.items)


def _make(
    law: SampledResponseLaw | LeveledResponseLaw, requested: SampledResponseParameters
) -> (
    SampledResponseAggregator
    | SampledItemsAggregator
    | SampledNumbersAggregator
    | SampledPrefixesAggregator
):
    if isinstance(law, LeveledResponseLaw):
        searched = requested.searched
        return (
            SampledPrefixesAggregator(law, requested.window) if searched else sampled_numbers(law)
        )
    return SampledResponseAggregator(law) if requested.domain is None else sampled_items(law)


def _read(
    law: SampledResponseLaw | LeveledResponseLaw, requested: SampledResponseParameters, data: bytes
) -> Aggregator:
    aggregator: Any = _make(law, requested)
    aggregator.merge(type(aggregator).from_bytes(law, data))
    read: Aggregator = aggregator
    return read


def _item_covariances(law: Any, requested: object) -> ItemCovariances | None:
    if isinstance(law, LeveledResponseLaw) or law.slots > 1:
        return None
    return partial(set_covariances, law, law.sets)


def _added_epochs(law: Any, requested: SampledResponseParameters) -> int | None:
    if not requested.searched:
        return None
    window = law.last_epoch if requested.window is None else requested.window
    return None if window == 1 else window


def _law_type(requested: SampledResponseParameters) -> LawReader:
    leveled = requested.numbers is not None or requested.searched
    return LeveledResponseLaw if leveled else SampledResponseLaw


def _randomizer(
    law: SampledResponseLaw | LeveledResponseLaw,
) -> SampledResponse | LeveledResponse:
    if isinstance(law, LeveledResponseLaw):
        return LeveledResponse(law)
    return SampledResponse(law)


def _if_shuffled(law: SampledResponseLaw | LeveledResponseLaw, minimum: int) -> Guarantee | None:
    if law.reports > 1:
        return None
    return replace(
        _randomizer(law).guarantee,
        epsilon=_epsilon_if_shuffled(law, minimum, DELTA),
        delta=DELTA,
        trust=shuffle_to_mix(minimum),
        basis="bound",
    )


PROTOCOL = Protocol(
    name="sampled_response",
    parameters=SampledResponseParameters,
    law=_law_type,
    calibrate=lambda requested, last_epoch, minimum: _calibrate(requested, last_epoch),
    randomizer=_randomizer,
    aggregation=Aggregation(
        _make,
        _read,
        changes=_changes,
        # Estimates that cover several epochs have answers in common.
        window_errors=lambda law, requested: (
            None if _added_epochs(law, requested) else IndependentWindows()
        ),
        window_changes=_window_changes,
        item_covariances=_item_covariances,
        added_epochs=_added_epochs,
    ),
    planning=Planning(_forecast, if_shuffled=_if_shuffled),
    values=_values,
    recurring=_recurring,
    sampled=lambda law: Fraction(law.reports, law.last_epoch),
    examples=(
        Example(SampledResponseParameters(1.0), 4),
        Example(SampledResponseParameters(2.0, 2), 3),
        Example(SampledResponseParameters(4.0, 3), 3),
        Example(SampledResponseParameters(2.0, domain=("a", "b", "c")), 2),
        Example(SampledResponseParameters(2.0, 2, domain=("a", "b", "c"), complete=True), 2),
        Example(SampledResponseParameters(2.0, domain=("a", "b", "c"), items=2), 2),
        Example(SampledResponseParameters(1.0, low=0, high=80, buckets=8), 2),
    ),
)
