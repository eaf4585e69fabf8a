"""The protocols a job can name: what a device runs, paired with what the server runs.

A protocol is a module of ``randomizers``, a module of the same name of ``aggregators``, and one
entry of `PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from aggregators.epoch_responses import EpochResponsesAggregator
from aggregators.future_rand import FutureRandAggregator
from aggregators.hadamard_stream import HadamardStreamAggregator
from aggregators.range_stream import RangeStreamAggregator
from pipeline.forecasts import (
    Forecast,
    FutureRandForecast,
    HadamardStreamForecast,
    MemoizedResponseForecast,
    SplitBudgetForecast,
)
from pipeline.input.numbers import NumericDomain
from pipeline.input.values import CategoryDomain
from pipeline.protocol import Example, Protocol
from pipeline.range_forecast import RangeStreamForecast
from randomizers.comparisons import (
    BunParameters,
    ErlingssonParameters,
    IndependentResponseParameters,
)
from randomizers.future_rand import FutureRand, FutureRandLaw, FutureRandParameters
from randomizers.hadamard_stream import (
    HadamardStream,
    HadamardStreamLaw,
    HadamardStreamParameters,
)
from randomizers.memoized_response import (
    MemoizedResponse,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
)
from randomizers.range_stream import RangeStream, RangeStreamLaw, RangeStreamParameters
from randomizers.split_budget import SplitBudget, SplitBudgetLaw, SplitBudgetParameters


def _calibration(module: str, function: str = "calibrate") -> Callable[[Any, int], Any]:
    """A function of ``randomizers.accounting``, imported when it is called.

    Devices read this module, and nothing they run needs accounting.
    """

    def calibrate(parameters: Any, last_epoch: int) -> Any:
        accounting = import_module(f"randomizers.accounting.{module}")
        return getattr(accounting, function)(parameters, last_epoch)

    return calibrate


def _dyadic_comparison(
    name: str, parameters: type[IndependentResponseParameters], examples: tuple[Example, ...]
) -> Protocol:
    """FutureRand's devices and estimators, with another law of signs."""
    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=_calibration("comparisons", f"calibrate_{name}"),
        law_from_json=FutureRandLaw.from_json,
        randomizer=FutureRand,
        restore=FutureRand.restore,
        aggregator=lambda law, asked: FutureRandAggregator(law, asked.estimator),
        aggregator_from_bytes=lambda law, asked, data: FutureRandAggregator.from_bytes(
            law, data, asked.estimator
        ),
        word_dtype=FutureRand.word_dtype,
        width=FutureRand.width,
        needs_shuffle=False,
        forecast=lambda law, asked, last_epoch: FutureRandForecast(
            law, last_epoch, asked.estimator
        ),
        examples=examples,
    )


def _epoch_responses(
    name: str,
    parameters: type[Any],
    law: type[SplitBudgetLaw] | type[MemoizedResponseLaw],
    devices: type[SplitBudget] | type[MemoizedResponse],
    forecast: Callable[[Any, int], Forecast],
    examples: tuple[Example, ...],
) -> Protocol:
    """Devices that answer with one bit at every epoch."""
    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=_calibration("epoch_responses", f"calibrate_{name}"),
        law_from_json=law.from_json,
        randomizer=devices,
        restore=devices.restore,
        aggregator=lambda law, asked: EpochResponsesAggregator(law),
        aggregator_from_bytes=lambda law, asked, data: EpochResponsesAggregator.from_bytes(
            law, data
        ),
        word_dtype=devices.word_dtype,
        width=devices.width,
        needs_shuffle=False,
        forecast=lambda law, asked, last_epoch: forecast(law, last_epoch),
        examples=examples,
    )


def _numeric_domain(parameters: RangeStreamParameters) -> NumericDomain:
    return NumericDomain(parameters.low, parameters.high, parameters.buckets, parameters.initial)


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in [
        Protocol(
            name="future_rand",
            parameters=FutureRandParameters,
            calibrate=_calibration("future_rand"),
            law_from_json=FutureRandLaw.from_json,
            randomizer=FutureRand,
            restore=FutureRand.restore,
            aggregator=lambda law, asked: FutureRandAggregator(law, asked.estimator),
            aggregator_from_bytes=lambda law, asked, data: FutureRandAggregator.from_bytes(
                law, data, asked.estimator
            ),
            word_dtype=FutureRand.word_dtype,
            width=FutureRand.width,
            needs_shuffle=False,
            forecast=lambda law, asked, last_epoch: FutureRandForecast(
                law, last_epoch, asked.estimator
            ),
            examples=(
                Example(FutureRandParameters(1.0, 1), 2),
                Example(FutureRandParameters(2.0, 2), 4),
                Example(FutureRandParameters(1.5, 2), 3),
                Example(FutureRandParameters(4.0, 1, "published"), 2),
                Example(FutureRandParameters(8.0, 2, "published"), 4),
            ),
        ),
        Protocol(
            name="hadamard_stream",
            parameters=HadamardStreamParameters,
            calibrate=_calibration("hadamard_stream"),
            law_from_json=HadamardStreamLaw.from_json,
            randomizer=HadamardStream,
            restore=HadamardStream.restore,
            aggregator=lambda law, asked: HadamardStreamAggregator(law, asked.estimator),
            aggregator_from_bytes=lambda law, asked, data: HadamardStreamAggregator.from_bytes(
                law, data, asked.estimator
            ),
            word_dtype=HadamardStream.word_dtype,
            width=HadamardStream.width,
            needs_shuffle=False,
            values=lambda asked: CategoryDomain(asked.domain),
            forecast=lambda law, asked, last_epoch: HadamardStreamForecast(
                law, last_epoch, asked.estimator
            ),
            examples=(
                Example(HadamardStreamParameters(1.0, 0, ("a", "b")), 2),
                Example(HadamardStreamParameters(4.0, 1, ("a", "b")), 3),
                Example(HadamardStreamParameters(2.0, 1, ("a", "b", "c"), signs=1), 2),
            ),
        ),
        Protocol(
            name="range_stream",
            parameters=RangeStreamParameters,
            calibrate=_calibration("range_stream"),
            law_from_json=RangeStreamLaw.from_json,
            randomizer=RangeStream,
            restore=RangeStream.restore,
            aggregator=lambda law, asked: RangeStreamAggregator(law, asked.estimator),
            aggregator_from_bytes=lambda law, asked, data: RangeStreamAggregator.from_bytes(
                law, data, asked.estimator
            ),
            word_dtype=RangeStream.word_dtype,
            width=RangeStream.width,
            needs_shuffle=False,
            values=_numeric_domain,
            forecast=RangeStreamForecast,
            examples=(
                Example(RangeStreamParameters(1.0, 0, 0, 1, 2), 2),
                Example(RangeStreamParameters(3.0, 1, 0, 80, 4), 2),
                Example(RangeStreamParameters(2.0, 0, -5, 5, 8), 2),
            ),
        ),
        _dyadic_comparison(
            "independent_response",
            IndependentResponseParameters,
            (
                Example(IndependentResponseParameters(1.0, 1), 2),
                Example(IndependentResponseParameters(3.0, 2, "tree"), 4),
            ),
        ),
        _dyadic_comparison(
            "erlingsson",
            ErlingssonParameters,
            (
                Example(ErlingssonParameters(4.0, 2), 4),
                Example(ErlingssonParameters(2.0, 2, calibration="full"), 4),
            ),
        ),
        _dyadic_comparison(
            "bun",
            BunParameters,
            (
                Example(BunParameters(8.0, 1), 2),
                Example(BunParameters(12.0, 2), 4),
            ),
        ),
        _epoch_responses(
            "split_budget",
            SplitBudgetParameters,
            SplitBudgetLaw,
            SplitBudget,
            SplitBudgetForecast,
            (
                Example(SplitBudgetParameters(1.0), 1),
                Example(SplitBudgetParameters(4.0), 4),
            ),
        ),
        _epoch_responses(
            "memoized_response",
            MemoizedResponseParameters,
            MemoizedResponseLaw,
            MemoizedResponse,
            MemoizedResponseForecast,
            (
                Example(MemoizedResponseParameters(2.0), 4),
                Example(MemoizedResponseParameters(2.0, 0.3, "full"), 3),
            ),
        ),
    ]
}
