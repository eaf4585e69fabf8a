"""The continual protocol of the shuffled model, of any kind of values.

Values are 0 and 1, or, with a domain, labels or numbers: then the same job parameters have another
law, and devices and aggregators that know these; the law says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpstream.pipeline.protocols.change_limits import ChangeLimit, change_limit
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.late_calibration import late, late_calibration
from dpstream.pipeline.protocols.protocol import (
    Example,
    Law,
    LawReader,
    Protocol,
    StageDummies,
    StageSum,
    stated_capacity,
)
from dpstream.pipeline.protocols.shuffled_alternatives import alternatives
from dpstream.pipeline.values.numbers import NumericDomain
from dpstream.pipeline.values.value_domains import BOOLEAN, CategoryDomain, ValueDomain
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.item_domains import Bits, Numbers, StreamDomain


@dataclass(frozen=True, slots=True)
class Kind:
    """What runs, for one kind of values; `package` is one of `randomizers`.

    `contributors` of a law are how many its noise is sized on; None where the stage adds it.
    """

    package: str
    contributors: Callable[[Any], int | None]
    law: Any
    devices: Any
    aggregator: Any
    forecast: Callable[[Any, int], Forecast]


def shuffled(
    name: str,
    parameters: type[Any],
    booleans: Kind,
    items: Kind,
    numbers: Kind,
    sums: Kind,
    examples: tuple[Example, ...],
) -> Protocol:
    """A protocol of all kinds of values that there are modules for.

    With `sums` it is those that run for values 0 and 1 where parameters are `summed`: then the
    shuffle stage releases one noisy sum of a window, instead of its words.
    """
    kinds = (booleans, items, numbers, sums)

    def kind_for(asked: Any) -> Kind:
        match asked.domain:
            case None if asked.summed:
                return sums
            case None:
                return booleans
            case Numbers() | Bits():
                return numbers
            case _:
                return items

    def calibrate(asked: Any, last_epoch: int, minimum: int) -> Law:
        law: Law = late_calibration(kind_for(asked).package, sized=True)(asked, last_epoch, minimum)
        return law

    def reader_for(asked: Any) -> LawReader:
        reader: LawReader = kind_for(asked).law
        return reader

    def kind_of(law: Any) -> Kind:
        return next(kind for kind in kinds if isinstance(law, kind.law))

    def stage_dummies(law: Any) -> StageDummies | None:
        added: StageDummies | None = None
        if law.dummies == "shuffle" and kind_of(law) is not sums:
            added = law.stage_dummies
        return added

    def stage_sum(law: Any) -> StageSum | None:
        if kind_of(law) is not sums:
            return None
        return StageSum(law.sum_form, law.check_words, law.noisy_sum)

    def limit_of(law: Any, asked: Any, epochs: int) -> ChangeLimit | None:
        # Without a boost every epoch has reports of its own, and the value may change at will.
        return change_limit(law.changes, epochs, "delayed", boost=law.boost)

    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=calibrate,
        law=reader_for,
        randomizer=lambda law: kind_of(law).devices(law),
        restore=lambda law, arrays, epoch: kind_of(law).devices.restore(law, arrays, epoch),
        aggregator=lambda law, asked: kind_of(law).aggregator(law),
        aggregator_from_bytes=lambda law, asked, data: kind_of(law).aggregator.from_bytes(
            law, data
        ),
        word_form=lambda law: law.word_form,
        needs_shuffle=True,
        capacity=stated_capacity,
        contributors=lambda law: kind_of(law).contributors(law),
        epsilon_with=lambda law, honest: late(kind_of(law).package, "epsilon_with")(law, honest),
        stage_dummies=stage_dummies,
        stage_sum=stage_sum,
        change_limit=limit_of,
        values=lambda asked: _values(asked.domain),
        forecast=lambda law, asked, last_epoch: kind_of(law).forecast(law, last_epoch),
        alternatives=alternatives,
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


def noise_columns(noise: CellNoiseLaw) -> dict[str, int | float]:
    """Constants of the noise, for tables."""
    return {
        "dummies": noise.mean,
        "variance": noise.moments(noise.minimum)[1],
        "dummies_per_user": noise.per_contributor(1),
    }


def noise_caveats(noise: CellNoiseLaw) -> tuple[str, ...]:
    """What to know of noise that contributors add."""
    if noise.dummies == "shuffle":
        return ()
    return (
        "every user adds dummies, so that there is more noise than is needed with more users than "
        f"shuffle.minimum, {noise.minimum:,}: the closer it is to their number, the smaller the "
        "errors",
    )
