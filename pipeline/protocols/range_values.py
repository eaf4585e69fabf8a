"""Numbers over time by letters, nobody trusted. Its entry and its forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpstream.aggregators.range_values import RangeValuesAggregator
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.hadamard_values import HadamardValuesForecast, unboosted_caveat
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.level_forecasts import LevelForecast
from dpstream.pipeline.protocols.protocol import Alternative, Example, Protocol, fixed_words
from dpstream.pipeline.protocols.shuffled_alternatives import trusting_with_values
from dpstream.pipeline.values.numbers import NumericDomain
from dpstream.randomizers.item_domains import Numbers
from dpstream.randomizers.range_values import RangeValues, RangeValuesLaw, RangeValuesParameters


class RangeValuesForecast(LevelForecast):
    """A letter of every device at every epoch, on one of the levels.

    Args:
        law: the constants of the job.
        parameters: of the job.
        last_epoch: at most the law's last.
    """

    def __init__(
        self, law: RangeValuesLaw, parameters: RangeValuesParameters, last_epoch: int
    ) -> None:
        super().__init__(law, [HadamardValuesForecast(level, last_epoch) for level in law.levels])
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "level": number,
                "nodes": level.items,
                "probability": probability,
                "boosted": level.booleans.changes,
                "boost": level.booleans.boost,
                "decay": level.booleans.decay,
                "noise": level.booleans.probability_of_noise,
                "epsilon": level.booleans.loss,
            }
            for number, (level, probability) in enumerate(
                zip(law.levels, law.level_probabilities, strict=True), start=1
            )
        )
        last = law.levels[-1]
        self.caveats = (
            *self.bucket_caveats(parameters.low, parameters.high, parameters.buckets),
            unboosted_caveat(last.changes, last.booleans.changes, last.unboosted_share, "bucket"),
            "a flip that is not boosted shows by and by, which biases the estimates and is not in "
            "the predicted errors",
        )


def alternatives(asked: RangeValuesParameters, last_epoch: int) -> Iterator[Alternative]:
    """The one that trusts the shuffle stage."""
    buckets = Numbers(asked.low, asked.high, asked.buckets)
    yield from trusting_with_values(asked.epsilon, asked.changes, buckets)


PROTOCOL = Protocol(
    name="range_values",
    parameters=RangeValuesParameters,
    calibrate=late_calibration("range_values"),
    law=lambda asked: RangeValuesLaw,
    randomizer=RangeValues,
    restore=RangeValues.restore,
    aggregator=lambda law, asked: RangeValuesAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: RangeValuesAggregator.from_bytes(law, data),
    word_form=fixed_words(RangeValues),
    needs_shuffle=False,
    loss_of_streams=True,
    change_limit=lambda law, asked, epochs: change_limit(
        asked.changes,
        epochs,
        "delayed",
        first_is_free=True,
        boost=max(level.booleans.boost for level in law.levels),
    ),
    values=lambda asked: NumericDomain(asked.low, asked.high, asked.buckets, asked.initial),
    forecast=RangeValuesForecast,
    alternatives=alternatives,
    examples=(
        Example(RangeValuesParameters(1.0, 0, 0, 80, 4), 1),
        Example(RangeValuesParameters(2.0, 1, -5, 5, 2), 2),
    ),
)
