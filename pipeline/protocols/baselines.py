"""Protocols for yes or no at every epoch, for comparison only: entries and forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import (
    EpochResponsesAggregator,
    ResponseLaw,
    response_variance,
)
from dpstream.pipeline.protocols.future_rand import dyadic_protocol
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Example, LawReader, Protocol, fixed_words
from dpstream.randomizers.baselines import (
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
from dpstream.randomizers.epoch_responses import EpochResponses

_CALIBRATE = late_calibration("baselines")


class EpochResponsesForecast:
    """One bit of every device at every epoch: all estimates are equally good.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        constants: what `plan` says besides of the law.
        caveats: what to know of the estimates.
    """

    def __init__(
        self,
        law: ResponseLaw,
        last_epoch: int,
        constants: Mapping[str, int | float] | None = None,
        caveats: tuple[str, ...] = (),
    ) -> None:
        self._law, self.caveats = law, caveats
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {"epochs": law.last_epoch, "c_gap": law.c_gap, **(constants or {})},
        )

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        variance = response_variance(self._law, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


def _epoch_responses(
    name: str,
    parameters: type[Any],
    law: LawReader,
    devices: type[EpochResponses[Any]],
    constants: Callable[[Any], Mapping[str, int | float]],
    *examples: Example,
    caveats: tuple[str, ...] = (),
    loss_of_streams: bool = False,
) -> Protocol:
    """Devices that answer with one bit at every epoch.

    Args:
        name: of the protocol.
        parameters: its class.
        law: its class.
        devices: its class.
        constants: from a law, what `plan` says of it besides.
        examples: see `Protocol`.
        caveats: what to know of the estimates.
        loss_of_streams: see `Protocol`.
    """
    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=_CALIBRATE,
        law=lambda asked: law,
        randomizer=devices,
        restore=devices.restore,
        aggregator=lambda law, asked: EpochResponsesAggregator(law),
        aggregator_from_bytes=lambda law, asked, data: EpochResponsesAggregator.from_bytes(
            law, data
        ),
        word_form=fixed_words(devices),
        needs_shuffle=False,
        loss_of_streams=loss_of_streams,
        forecast=lambda law, asked, last_epoch: EpochResponsesForecast(
            law, last_epoch, constants(law), caveats
        ),
        examples=examples,
    )


def _of_memoized(law: MemoizedResponseLaw) -> Mapping[str, int | float]:
    return {
        "permanent_epsilon": law.permanent.loss,
        "instantaneous_epsilon": law.instantaneous.loss,
        "stream_epsilon": law.stream_loss,
    }


INDEPENDENT_RESPONSE = dyadic_protocol(
    "independent_response",
    IndependentResponseParameters,
    _CALIBRATE,
    (
        Example(IndependentResponseParameters(1.0, 1), 2),
        Example(IndependentResponseParameters(3.0, 2, "tree"), 4),
    ),
)

ERLINGSSON = dyadic_protocol(
    "erlingsson",
    ErlingssonParameters,
    _CALIBRATE,
    (
        Example(ErlingssonParameters(4.0, 2), 4),
        Example(ErlingssonParameters(2.0, 2, calibration="full"), 4),
    ),
)

BUN = dyadic_protocol(
    "bun",
    BunParameters,
    _CALIBRATE,
    (
        Example(BunParameters(8.0, 1), 2),
        Example(BunParameters(12.0, 2), 4),
    ),
)

SPLIT_BUDGET = _epoch_responses(
    "split_budget",
    SplitBudgetParameters,
    SplitBudgetLaw,
    SplitBudget,
    lambda law: {"epsilon": law.response.loss},
    Example(SplitBudgetParameters(1.0), 1),
    Example(SplitBudgetParameters(4.0), 4),
    loss_of_streams=True,
)

MEMOIZED_RESPONSE = _epoch_responses(
    "memoized_response",
    MemoizedResponseParameters,
    MemoizedResponseLaw,
    MemoizedResponse,
    _of_memoized,
    Example(MemoizedResponseParameters(2.0), 4),
    Example(MemoizedResponseParameters(2.0, 0.3, "full"), 3),
    caveats=(
        "estimates of different epochs rest on the same permanent responses: averaging over epochs "
        "does not take their error away",
        "the guarantee is for values that never change; whole streams lose what stream_epsilon "
        "says, and budgets are charged with that",
    ),
)
