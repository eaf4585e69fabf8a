"""Registry entries of the continual protocols of the shuffled model.

Values are 0 and 1, or, with a domain, labels or numbers: then the same job parameters have another
law, and devices and aggregators that know these; the law says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from aggregators.shuffled_counts import ShuffledCountsAggregator
from aggregators.shuffled_item_counts import ShuffledItemCountsAggregator
from aggregators.shuffled_item_tree import (
    ShuffledItemTreeAggregator,
    ShuffledNumberTreeAggregator,
)
from aggregators.shuffled_level_counts import ShuffledLevelCountsAggregator
from aggregators.shuffled_tree import ShuffledTreeAggregator
from pipeline.forecasts import Forecast
from pipeline.input.numbers import NumericDomain
from pipeline.input.values import BOOLEAN, CategoryDomain, ValueDomain
from pipeline.protocol import Example, Law, Protocol, stated_capacity
from pipeline.shuffled_forecasts import (
    ShuffledCountsForecast,
    ShuffledItemCountsForecast,
    ShuffledItemTreeForecast,
    ShuffledLevelCountsForecast,
    ShuffledTreeForecast,
)
from randomizers.item_domains import Bits, Numbers, StreamDomain
from randomizers.shuffled_counts import (
    ShuffledCounts,
    ShuffledCountsLaw,
    ShuffledCountsParameters,
)
from randomizers.shuffled_item_counts import ShuffledItemCounts, ShuffledItemCountsLaw
from randomizers.shuffled_item_tree import ShuffledItemTree, ShuffledItemTreeLaw
from randomizers.shuffled_level_counts import ShuffledLevelCountsLaw
from randomizers.shuffled_tree import ShuffledTree, ShuffledTreeLaw, ShuffledTreeParameters


@dataclass(frozen=True, slots=True)
class _Kind:
    """What runs, for one kind of values; `accounting` is a module of ``randomizers.accounting``.

    `of_numbers` is the aggregator where items are numbers, if it is another one.
    """

    accounting: str
    law: Any
    devices: Any
    aggregator: Any
    forecast: Callable[[Any, int], Forecast]
    of_numbers: Any = None

    def aggregator_for(self, asked: Any) -> Any:
        """The class of aggregators, for the parameters of a job."""
        numbers = isinstance(asked.domain, Numbers | Bits)
        return self.of_numbers if numbers and self.of_numbers is not None else self.aggregator


def _shuffled(
    name: str,
    parameters: type[Any],
    booleans: _Kind,
    items: _Kind,
    examples: tuple[Example, ...],
    numbers: _Kind | None = None,
) -> Protocol:
    """A protocol of all kinds of values that there are modules for."""
    kinds = [kind for kind in (booleans, items, numbers) if kind is not None]

    def calibrate(asked: Any, last_epoch: int, minimum: int) -> Law:
        # Imported when it is called: nothing that devices run needs accounting.
        kind = booleans if asked.domain is None else items
        if numbers is not None and isinstance(asked.domain, Numbers | Bits):
            kind = numbers
        accounting = import_module(f"randomizers.accounting.{kind.accounting}")
        law: Law = accounting.calibrate(asked, last_epoch, minimum)
        return law

    def kind_of(law: Any) -> _Kind:
        return next(kind for kind in kinds if isinstance(law, kind.law))

    def law_from_json(body: Mapping[str, Any]) -> Law:
        kind = items if "size" in body else booleans
        if numbers is not None and "levels" in body:
            kind = numbers
        law: Law = kind.law.from_json(body)
        return law

    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=calibrate,
        law_from_json=law_from_json,
        randomizer=lambda law: kind_of(law).devices(law),
        restore=lambda law, arrays, epoch: kind_of(law).devices.restore(law, arrays, epoch),
        aggregator=lambda law, asked: kind_of(law).aggregator_for(asked)(law),
        aggregator_from_bytes=lambda law, asked, data: (
            kind_of(law).aggregator_for(asked).from_bytes(law, data)
        ),
        word_form=lambda law: law.word_form,
        needs_shuffle=True,
        capacity=stated_capacity,
        stage_dummies=lambda law: law.stage_dummies if law.dummies == "shuffle" else None,
        values=lambda asked: _values(asked.domain),
        forecast=lambda law, asked, last_epoch: kind_of(law).forecast(law, last_epoch),
        examples=examples,
    )


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


SHUFFLED_COUNTS = _shuffled(
    "shuffled_counts",
    ShuffledCountsParameters,
    _Kind(
        "shuffled_counts",
        ShuffledCountsLaw,
        ShuffledCounts,
        ShuffledCountsAggregator,
        ShuffledCountsForecast,
    ),
    _Kind(
        "shuffled_item_counts",
        ShuffledItemCountsLaw,
        ShuffledItemCounts,
        ShuffledItemCountsAggregator,
        ShuffledItemCountsForecast,
    ),
    (
        Example(ShuffledCountsParameters(1.5, 0.05), 2),
        Example(ShuffledCountsParameters(1.0, 0.05), 1, minimum=2),
        Example(ShuffledCountsParameters(4.0, 0.1, 1, 1), 2),
        Example(ShuffledCountsParameters(5.0, 0.1, 1, 1, "conditional"), 2, minimum=3),
        Example(ShuffledCountsParameters(1.5, 0.05, domain=("a", "b")), 1),
        Example(ShuffledCountsParameters(4.0, 0.1, domain=("a",), cells="count_min"), 1, minimum=2),
        Example(ShuffledCountsParameters(4.0, 0.1, domain=Numbers(0.0, 80.0, 2)), 1),
    ),
    _Kind(
        "shuffled_level_counts",
        ShuffledLevelCountsLaw,
        ShuffledItemCounts,
        ShuffledLevelCountsAggregator,
        ShuffledLevelCountsForecast,
    ),
)

SHUFFLED_TREE = _shuffled(
    "shuffled_tree",
    ShuffledTreeParameters,
    _Kind(
        "shuffled_tree",
        ShuffledTreeLaw,
        ShuffledTree,
        ShuffledTreeAggregator,
        ShuffledTreeForecast,
    ),
    _Kind(
        "shuffled_item_tree",
        ShuffledItemTreeLaw,
        ShuffledItemTree,
        ShuffledItemTreeAggregator,
        ShuffledItemTreeForecast,
        ShuffledNumberTreeAggregator,
    ),
    (
        Example(ShuffledTreeParameters(4.0, 0.1, 1), 2),
        Example(ShuffledTreeParameters(4.0, 0.1, 2), 1, minimum=2),
        Example(ShuffledTreeParameters(3.0, 0.1, 1, domain=("a", "b")), 1),
        Example(ShuffledTreeParameters(3.0, 0.1, 1, domain=Numbers(0.0, 80.0, 2)), 1),
    ),
)
