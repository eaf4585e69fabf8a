"""Registry entry for shuffled_counts: four mechanisms for counts with one charge per horizon.

- Depending on the domain, the number of users with value 1 (`ShuffledCountsLaw`), with each of
  several items (`ShuffledItemCountsLaw`), or with numbers in ranges (`ShuffledLevelCountsLaw`).
- If the shuffler adds the noise and releases a sum, the number of users with value 1
  (`ShuffledValueStreamLaw`).

The mechanism determines the devices and aggregators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpstream.aggregators.change_errors import ChangeErrors, FollowedChanges, RetainedErrors
from dpstream.aggregators.item_covariances import sampling_covariances
from dpstream.aggregators.shuffled_counts import ShuffledCountsAggregator
from dpstream.aggregators.shuffled_item_counts import ShuffledItemCountsAggregator
from dpstream.aggregators.shuffled_level_counts import ShuffledLevelCountsAggregator
from dpstream.aggregators.shuffled_value_stream import (
    ShuffledValueStreamAggregator,
    received_errors,
)
from dpstream.aggregators.window_errors import FollowedWindows, RetainedWindows, WindowErrors
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.late_calibration import late, late_calibration
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Law,
    LawReader,
    Planning,
    Protocol,
    Shuffling,
    StageDummies,
    StageSum,
)
from dpstream.pipeline.protocols.shuffled_forecasts import (
    ShuffledCountsForecast,
    ShuffledItemCountsForecast,
    ShuffledLevelCountsForecast,
    ShuffledValueStreamForecast,
)
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.item_domains import Bits, Numbers, StreamDomain
from dpstream.randomizers.shuffled_counts import (
    ShuffledCounts,
    ShuffledCountsLaw,
    ShuffledCountsParameters,
)
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import (
    ShuffledItemCounts,
    ShuffledItemCountsLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    ShuffledValueStream,
    ShuffledValueStreamLaw,
)


@dataclass(frozen=True, slots=True)
class ShuffledVariant:
    """Implementation for one kind of value; `package` is in `randomizers`.

    `contributors` returns the number of users who add the noise; None if the shuffler adds it.
    """

    package: str
    contributors: Callable[[Any], int | None]
    law: Any
    devices: Any
    aggregator: Any
    forecast: Callable[[Any, int], Forecast]


_BOOLEANS = ShuffledVariant(
    "shuffled_counts",
    lambda law: law.noise.contributors,
    ShuffledCountsLaw,
    ShuffledCounts,
    ShuffledCountsAggregator,
    ShuffledCountsForecast,
)
_ITEMS = ShuffledVariant(
    "shuffled_counts.shuffled_item_counts",
    lambda law: law.held.contributors,
    ShuffledItemCountsLaw,
    ShuffledItemCounts,
    ShuffledItemCountsAggregator,
    ShuffledItemCountsForecast,
)
_NUMBERS = ShuffledVariant(
    "shuffled_counts.shuffled_level_counts",
    lambda law: law.held.contributors,
    ShuffledLevelCountsLaw,
    ShuffledItemCounts,
    ShuffledLevelCountsAggregator,
    ShuffledLevelCountsForecast,
)
_SUMS = ShuffledVariant(
    "shuffled_counts.shuffled_value_stream",
    lambda law: law.contributors,
    ShuffledValueStreamLaw,
    ShuffledValueStream,
    ShuffledValueStreamAggregator,
    ShuffledValueStreamForecast,
)


def _kind_for(requested: ShuffledCountsParameters) -> ShuffledVariant:
    match requested.domain:
        case None if requested.summed:
            return _SUMS
        case None:
            return _BOOLEANS
        case Numbers() | Bits():
            return _NUMBERS
        case _:
            return _ITEMS


def _kind_of(law: Any) -> ShuffledVariant:
    kinds = (_BOOLEANS, _ITEMS, _NUMBERS, _SUMS)
    return next(kind for kind in kinds if isinstance(law, kind.law))


def _calibrate(requested: Any, last_epoch: int, minimum: int) -> Law:
    calibrate = late_calibration(_kind_for(requested).package, sized=True)
    law: Law = calibrate(requested, last_epoch, minimum)
    return law


def _reader_for(requested: Any) -> LawReader:
    reader: LawReader = _kind_for(requested).law
    return reader


def _stage_dummies(law: Any) -> StageDummies | None:
    if law.dummies != "shuffle" or _kind_of(law) is _SUMS:
        return None
    added: StageDummies = law.stage_dummies
    return added


def _stage_sum(law: Any) -> StageSum | None:
    if _kind_of(law) is not _SUMS:
        return None
    return StageSum(law.sum_form, law.check_messages, law.noisy_sum)


def _values(domain: StreamDomain | None) -> ValueDomain:
    match domain:
        case None:
            return BOOLEAN
        case Numbers():
            return NumericDomain(domain.low, domain.high, domain.buckets, optional=True)
        case Bits():
            size = 1 << domain.bits
            return NumericDomain(0, size, size, optional=True)
        case _:
            return CategoryDomain(domain)


_BOOSTED = ShuffledCountsLaw | ShuffledItemCountsLaw | ShuffledLevelCountsLaw


def _changes(law: Any, requested: ShuffledCountsParameters, lag: int) -> ChangeErrors | None:
    if isinstance(law, ShuffledValueStreamLaw):
        return FollowedChanges(Kernel(law.boost, law.decay), partial(received_errors, law), lag)
    return RetainedErrors(lag, law.boost / (law.boost + 1)) if isinstance(law, _BOOSTED) else None


def _window_errors(law: Any, requested: ShuffledCountsParameters) -> WindowErrors | None:
    if isinstance(law, ShuffledValueStreamLaw):
        return FollowedWindows(Kernel(law.boost, law.decay), partial(received_errors, law))
    return RetainedWindows(law.boost / (law.boost + 1)) if isinstance(law, _BOOSTED) else None


PROTOCOL = Protocol(
    name="shuffled_counts",
    parameters=ShuffledCountsParameters,
    law=_reader_for,
    calibrate=_calibrate,
    randomizer=lambda law: _kind_of(law).devices(law),
    aggregation=Aggregation(
        lambda law, requested: _kind_of(law).aggregator(law),
        lambda law, requested, data: _kind_of(law).aggregator.from_bytes(law, data),
        changes=_changes,
        window_errors=_window_errors,
        # Buckets that several items share count all of them alike, which is subtracted.
        item_covariances=lambda law, requested: sampling_covariances,
        # Without a boost, every epoch has its own reports, and any number of changes is counted.
        change_limit=lambda law, requested, epochs: change_limit(
            law.max_changes, epochs, "delayed", boost=law.boost
        ),
    ),
    shuffling=Shuffling(
        lambda law, honest: late(_kind_of(law).package, "epsilon_with")(law, honest),
        contributors=lambda law: _kind_of(law).contributors(law),
        stage_dummies=_stage_dummies,
        stage_sum=_stage_sum,
    ),
    planning=Planning(lambda law, requested, last_epoch: _kind_of(law).forecast(law, last_epoch)),
    values=lambda requested: _values(requested.domain),
    examples=(
        Example(ShuffledCountsParameters(1.5, 0.05), 2),
        Example(ShuffledCountsParameters(1.0, 0.05), 1, minimum=2),
        Example(ShuffledCountsParameters(4.0, 0.1, 1, 1), 2),
        Example(ShuffledCountsParameters(1.5, 0.05, domain=("a", "b")), 1),
        Example(ShuffledCountsParameters(4.0, 0.1, domain=("a",), cells="count_min"), 1, minimum=2),
        Example(ShuffledCountsParameters(4.0, 0.1, domain=Numbers(0.0, 80.0, 2)), 1),
        Example(ShuffledCountsParameters(4.0, 0.1, 1, dummies="shuffle"), 1, minimum=2),
    ),
)
