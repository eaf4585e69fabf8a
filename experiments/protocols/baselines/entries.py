"""Registry entries and forecasts of Boolean protocols that are for comparison only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import (
    EpochResponsesAggregator,
    ResponseLaw,
    response_variance,
)
from dpstream.pipeline.protocols.alternatives import alternatives
from dpstream.pipeline.protocols.dyadic_variants import dyadic_protocol
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.randomizers.value_stream import ValueStreamParameters
from experiments.protocols.baselines import (
    BunParameters,
    ErlingssonParameters,
    IndependentResponseParameters,
    MemoizedResponse,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
    SplitBudget,
    SplitBudgetLaw,
    SplitBudgetParameters,
)
from experiments.protocols.baselines.calibration import calibrate


def _calibrate(parameters: Any, last_epoch: int, minimum: int) -> Any:
    return calibrate(parameters, last_epoch)


class EpochResponsesForecast:
    """Forecast for protocols with one bit per device and epoch: all estimates are equally accurate.

    `constants` are shown by `plan` in addition to the mechanism's own constants.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self, law: ResponseLaw, last_epoch: int, constants: Mapping[str, int | float] | None = None
    ) -> None:
        self._law = law
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {"epochs": law.last_epoch, "c_gap": law.c_gap, **(constants or {})},
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        variance = response_variance(self._law, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


class MemoizedResponseForecast(EpochResponsesForecast):
    """Forecast for responses with permanent and instantaneous randomization."""

    def __init__(self, law: MemoizedResponseLaw, last_epoch: int) -> None:
        losses = {
            "permanent_epsilon": law.permanent.loss,
            "instantaneous_epsilon": law.instantaneous.loss,
            "stream_epsilon": law.stream_loss,
        }
        super().__init__(law, last_epoch, losses)
        self.notes = (
            "estimates of different epochs depend on the same permanent responses: averaging over "
            "epochs does not remove their error",
            "the guarantee covers values that never change; stream_epsilon states the loss of "
            "whole streams, which budgets are charged",
        )


# `plan` names the protocol to use instead.
alternatives.register(IndependentResponseParameters, alternatives.dispatch(ValueStreamParameters))

INDEPENDENT_RESPONSE = dyadic_protocol(
    "independent_response",
    IndependentResponseParameters,
    _calibrate,
    (
        Example(IndependentResponseParameters(1.0, 1), 2),
        Example(IndependentResponseParameters(3.0, 2, "tree"), 4),
    ),
)

ERLINGSSON = dyadic_protocol(
    "erlingsson",
    ErlingssonParameters,
    _calibrate,
    (
        Example(ErlingssonParameters(4.0, 2), 4),
        Example(ErlingssonParameters(2.0, 2, calibration="full"), 4),
    ),
)

BUN = dyadic_protocol(
    "bun",
    BunParameters,
    _calibrate,
    (
        Example(BunParameters(8.0, 1), 2),
        Example(BunParameters(12.0, 2), 4),
    ),
)

SPLIT_BUDGET = Protocol(
    name="split_budget",
    parameters=SplitBudgetParameters,
    law=lambda requested: SplitBudgetLaw,
    calibrate=_calibrate,
    message_format=fixed_format(SplitBudget),
    randomizer=SplitBudget,
    aggregation=Aggregation.of(EpochResponsesAggregator),
    planning=Planning.of(
        lambda law, last_epoch: EpochResponsesForecast(
            law, last_epoch, {"epsilon": law.response.loss}
        )
    ),
    loss_of_streams=True,
    examples=(Example(SplitBudgetParameters(1.0), 1), Example(SplitBudgetParameters(4.0), 4)),
)

MEMOIZED_RESPONSE = Protocol(
    name="memoized_response",
    parameters=MemoizedResponseParameters,
    law=lambda requested: MemoizedResponseLaw,
    calibrate=_calibrate,
    message_format=fixed_format(MemoizedResponse),
    randomizer=MemoizedResponse,
    aggregation=Aggregation.of(EpochResponsesAggregator),
    planning=Planning.of(MemoizedResponseForecast),
    examples=(
        Example(MemoizedResponseParameters(2.0), 4),
        Example(MemoizedResponseParameters(2.0, 0.3, "full"), 3),
    ),
)
