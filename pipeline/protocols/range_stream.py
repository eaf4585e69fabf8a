"""Numbers over time, nobody trusted. Its entry and its forecast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregators.dyadic_aggregator import Estimator
from aggregators.range_stream import RangeStreamAggregator
from pipeline.protocols import projective_geometry
from pipeline.protocols.hadamard_stream import FEW_EPOCHS, HadamardStreamForecast
from pipeline.protocols.late_calibration import late_calibration
from pipeline.protocols.level_forecasts import LevelForecast
from pipeline.protocols.protocol import Alternative, Example, Protocol, fixed_words
from pipeline.protocols.shuffled_alternatives import trusting_with_values
from pipeline.values.numbers import NumericDomain
from randomizers.item_domains import Numbers
from randomizers.projective_geometry import ProjectiveGeometryParameters
from randomizers.range_stream import RangeStream, RangeStreamLaw, RangeStreamParameters
from randomizers.range_values import RangeValuesParameters

_MANY: Final = 1_000_000
"""Users that two forecasts are compared with: both grow with the square root of their number."""


class RangeStreamForecast(LevelForecast):
    """The levels' own errors, and what least squares over the value tree makes of them.

    Args:
        law: the constants of the job.
        parameters: of the job.
        last_epoch: at most the law's horizon.
    """

    def __init__(
        self, law: RangeStreamLaw, parameters: RangeStreamParameters, last_epoch: int
    ) -> None:
        estimator: Estimator = parameters.estimator
        forecasts = [HadamardStreamForecast(level, last_epoch, estimator) for level in law.levels]
        super().__init__(law, forecasts)
        self.horizon = law.horizon
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "level": number,
                "nodes": level.items,
                "probability": probability,
                "flips": level.signs,
                "frozen": level.frozen_share,
                "epsilon": level.future_rand.loss,
            }
            for number, (level, probability) in enumerate(
                zip(law.levels, law.level_probabilities, strict=True), start=1
            )
        )
        self.caveats = (
            *self.bucket_caveats(parameters.low, parameters.high, parameters.buckets),
            _freezing(law),
        )


def _freezing(law: RangeStreamLaw) -> str:
    drawn = [level for level, weight in zip(law.levels, law.level_weights, strict=True) if weight]
    bias = "what is then missed of it biases the estimates, and is not in the predicted errors"
    changes, missing = drawn[0].changes, drawn[0].changes + 1 - min(each.signs for each in drawn)
    if missing <= 0:
        return f"a user whose value changes its bucket more than {changes} times may freeze: {bias}"
    # Across one edge a device flips every time, or not at all but for its first value.
    alternating = "25 %" if missing == 1 else "50 %"
    return (
        f"of the users whose value changes its bucket {changes} times up to "
        f"{max(each.frozen_share for each in drawn):.2%} freeze if each change is to another "
        f"bucket chosen at random, and up to {alternating} if they go back and forth across one "
        f"edge: {bias}"
    )


def _numeric_domain(parameters: RangeStreamParameters) -> NumericDomain:
    return NumericDomain(parameters.low, parameters.high, parameters.buckets, parameters.initial)


def alternatives(asked: RangeStreamParameters, last_epoch: int) -> Iterator[Alternative]:
    """The one that reports values, the one that trusts the shuffle stage, and one asked anew.

    The last one is for few epochs. What is asked for then is the bucket, and ranges are sums of
    buckets: that is named only where half of all buckets together, the worst of all sums, are
    better known than by the tree.
    """
    yield (
        "range_values",
        partial(
            RangeValuesParameters,
            asked.epsilon,
            asked.changes,
            asked.low,
            asked.high,
            asked.buckets,
            asked.initial,
        ),
    )
    buckets = Numbers(asked.low, asked.high, asked.buckets)
    yield from trusting_with_values(asked.epsilon, asked.changes, buckets)
    if last_epoch > FEW_EPOCHS:
        return
    try:
        anew = ProjectiveGeometryParameters(asked.epsilon / last_epoch, buckets)
        law = late_calibration("projective_geometry", sized=True)(anew, last_epoch, 1)
    except ValueError:
        return
    ours = RangeStreamForecast(range_stream_law(asked, last_epoch, 1), asked, last_epoch)
    other = projective_geometry.ProjectiveGeometryForecast(law, last_epoch)
    half = math.sqrt(asked.buckets / 2) * other.standard_deviations(_MANY)
    widest = ours.range_deviations(_MANY, 0, asked.buckets // 2)
    bucket = ours.standard_deviations(_MANY)
    if _mean_square(half) < _mean_square(np.maximum(widest, bucket)):
        yield "projective_geometry", lambda: anew


def _mean_square(deviations: NDArray[np.float64]) -> float:
    return float(np.square(deviations).mean())


range_stream_law = late_calibration("range_stream")

PROTOCOL = Protocol(
    name="range_stream",
    parameters=RangeStreamParameters,
    calibrate=range_stream_law,
    law=lambda asked: RangeStreamLaw,
    randomizer=RangeStream,
    restore=RangeStream.restore,
    aggregator=lambda law, asked: RangeStreamAggregator(law, asked.estimator),
    aggregator_from_bytes=lambda law, asked, data: RangeStreamAggregator.from_bytes(
        law, data, asked.estimator
    ),
    word_form=fixed_words(RangeStream),
    needs_shuffle=False,
    loss_of_streams=True,
    values=_numeric_domain,
    forecast=RangeStreamForecast,
    alternatives=alternatives,
    examples=(
        Example(RangeStreamParameters(1.0, 0, 0, 1, 2), 2),
        Example(RangeStreamParameters(3.0, 1, 0, 80, 4), 2),
        Example(RangeStreamParameters(2.0, 0, -5, 5, 8), 2),
    ),
)
