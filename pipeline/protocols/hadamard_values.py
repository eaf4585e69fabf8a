"""Registry entry for hadamard_values: one of several items per epoch; trusted party: none."""

from __future__ import annotations

from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.item_covariances import sampling_covariances
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.late_calibration import late_calibration, late_plan
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.pipeline.values.value_domains import CategoryDomain
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValues,
    HadamardValuesLaw,
    HadamardValuesParameters,
)

PROTOCOL = Protocol(
    name="hadamard_values",
    parameters=HadamardValuesParameters,
    law=lambda requested: HadamardValuesLaw,
    calibrate=late_calibration("value_stream.hadamard_values"),
    message_format=fixed_format(HadamardValues),
    randomizer=HadamardValues,
    aggregation=Aggregation.of(
        HadamardValuesAggregator,
        item_covariances=lambda law, requested: sampling_covariances,
        change_limit=lambda law, requested, epochs: change_limit(
            requested.max_changes, epochs, "delayed", first_is_free=True, boost=law.booleans.boost
        ),
    ),
    planning=Planning.of(late_plan("followed_forecasts", "HadamardValuesForecast")),
    values=lambda requested: CategoryDomain(requested.domain),
    loss_of_streams=True,
    examples=(
        Example(HadamardValuesParameters(1.0, 0, ("a", "b")), 1),
        Example(HadamardValuesParameters(2.0, 1, ("a", "b")), 2),
    ),
)
