"""Registry entry for value_stream: the number of users with value 1, from one byte per epoch."""

from __future__ import annotations

from functools import partial

from dpstream.aggregators.change_errors import FollowedChanges
from dpstream.aggregators.value_stream import ValueStreamAggregator, received_errors
from dpstream.aggregators.window_errors import FollowedWindows
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.late_calibration import late_calibration, late_plan
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters


def _changes(law: ValueStreamLaw, requested: ValueStreamParameters, lag: int) -> FollowedChanges:
    return FollowedChanges(Kernel(law.boost, law.decay), partial(received_errors, law), lag)


def _window_errors(law: ValueStreamLaw, requested: ValueStreamParameters) -> FollowedWindows:
    return FollowedWindows(Kernel(law.boost, law.decay), partial(received_errors, law))


PROTOCOL = Protocol(
    name="value_stream",
    parameters=ValueStreamParameters,
    law=lambda requested: ValueStreamLaw,
    calibrate=late_calibration("value_stream"),
    message_format=fixed_format(ValueStream),
    randomizer=ValueStream,
    aggregation=Aggregation.of(
        ValueStreamAggregator,
        changes=_changes,
        window_errors=_window_errors,
        change_limit=lambda law, requested, epochs: change_limit(
            requested.max_changes, epochs, "delayed", boost=law.boost
        ),
    ),
    planning=Planning.of(late_plan("followed_forecasts", "ValueStreamForecast")),
    loss_of_streams=True,
    examples=(
        Example(ValueStreamParameters(2.0, 1), 1),
        Example(ValueStreamParameters(2.0, 2), 2),
    ),
)
