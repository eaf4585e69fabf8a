"""The protocols a job can name: what a device runs, paired with what the server runs.

A protocol is a module of ``randomizers``, a module of the same name of ``aggregators``, and one
entry of `PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from aggregators.balls_into_bins import BallsIntoBinsAggregator
from aggregators.count_min import CountMinAggregator
from aggregators.epoch_responses import EpochResponsesAggregator
from aggregators.future_rand import FutureRandAggregator
from aggregators.hadamard import HadamardAggregator
from aggregators.hadamard_stream import HadamardStreamAggregator
from aggregators.range_stream import RangeStreamAggregator
from aggregators.single_message import SingleMessageAggregator
from pipeline.balls_into_bins_forecast import BallsIntoBinsForecast
from pipeline.count_min_forecast import CountMinForecast
from pipeline.forecasts import (
    Forecast,
    FutureRandForecast,
    HadamardStreamForecast,
    MemoizedResponseForecast,
    SplitBudgetForecast,
)
from pipeline.input.numbers import NumericDomain
from pipeline.input.sets import SetDomain
from pipeline.input.values import CategoryDomain
from pipeline.item_forecasts import HadamardForecast, SingleMessageForecast
from pipeline.protocol import Example, Protocol, stated_capacity
from pipeline.range_forecast import RangeStreamForecast
from pipeline.shuffled_protocols import SHUFFLED_COUNTS, SHUFFLED_TREE
from randomizers.balls_into_bins import (
    BallsIntoBins,
    BallsIntoBinsLaw,
    BallsIntoBinsParameters,
)
from randomizers.comparisons import (
    BunParameters,
    ErlingssonParameters,
    IndependentResponseParameters,
)
from randomizers.count_min import CountMin, CountMinLaw, CountMinParameters
from randomizers.future_rand import FutureRand, FutureRandLaw, FutureRandParameters
from randomizers.hadamard import Hadamard, HadamardLaw, HadamardParameters
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
from randomizers.single_message import SingleMessage, SingleMessageLaw, SingleMessageParameters
from randomizers.split_budget import SplitBudget, SplitBudgetLaw, SplitBudgetParameters
from topics.word_forms import WordForm


def _calibration(
    module: str, function: str = "calibrate", *, sized: bool = False
) -> Callable[[Any, int, int], Any]:
    """A function of ``randomizers.accounting``, imported when it is called.

    Devices read this module, and nothing they run needs accounting. Where noise is `sized` on the
    smallest window, the function is told of it.
    """

    def calibrate(parameters: Any, last_epoch: int, minimum: int) -> Any:
        accounting = import_module(f"randomizers.accounting.{module}")
        smallest = (minimum,) if sized else ()
        return getattr(accounting, function)(parameters, last_epoch, *smallest)

    return calibrate


def _words_of(devices: type[Any]) -> Callable[[Any], WordForm]:
    """The form of words that a class of devices states for all its laws."""
    form = WordForm(devices.word_dtype, devices.width)
    return lambda law: form


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
        word_form=_words_of(FutureRand),
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
        word_form=_words_of(devices),
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
            word_form=_words_of(FutureRand),
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
            word_form=_words_of(HadamardStream),
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
            word_form=_words_of(RangeStream),
            needs_shuffle=False,
            values=_numeric_domain,
            forecast=RangeStreamForecast,
            examples=(
                Example(RangeStreamParameters(1.0, 0, 0, 1, 2), 2),
                Example(RangeStreamParameters(3.0, 1, 0, 80, 4), 2),
                Example(RangeStreamParameters(2.0, 0, -5, 5, 8), 2),
            ),
        ),
        Protocol(
            name="count_min",
            parameters=CountMinParameters,
            calibrate=_calibration("count_min", sized=True),
            law_from_json=CountMinLaw.from_json,
            randomizer=CountMin,
            restore=CountMin.restore,
            aggregator=lambda law, asked: CountMinAggregator(law, asked.estimator),
            aggregator_from_bytes=lambda law, asked, data: CountMinAggregator.from_bytes(
                law, data, asked.estimator
            ),
            word_form=lambda law: WordForm(CountMin.word_dtype, distinct=law.code.cells),
            needs_shuffle=True,
            capacity=stated_capacity,
            per_epoch=True,
            stage_dummies=CountMin.stage_dummies,
            values=lambda asked: SetDomain(asked.domain, asked.items),
            forecast=CountMinForecast,
            examples=(
                Example(CountMinParameters(1.0, 0.05, ("a", "b"), rows=1), 1),
                Example(CountMinParameters(1.5, 0.05, ("a", "b"), rows=1), 1, minimum=3),
                Example(
                    CountMinParameters(2.0, 0.2, ("a", "b"), rows=1, dummies="bernoulli"), 2, 6
                ),
                Example(
                    CountMinParameters(
                        2.0, 0.5, ("a", "b", "c", "d"), items=2, rows=1, dummies="bernoulli"
                    ),
                    1,
                    minimum=4,
                ),
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
        Protocol(
            name="balls_into_bins",
            parameters=BallsIntoBinsParameters,
            calibrate=_calibration("balls_into_bins", sized=True),
            law_from_json=BallsIntoBinsLaw.from_json,
            randomizer=BallsIntoBins,
            restore=BallsIntoBins.restore,
            aggregator=lambda law, asked: BallsIntoBinsAggregator(law),
            aggregator_from_bytes=lambda law, asked, data: BallsIntoBinsAggregator.from_bytes(
                law, data
            ),
            word_form=lambda law: law.word_form,
            needs_shuffle=True,
            capacity=stated_capacity,
            per_epoch=True,
            stage_dummies=lambda law: law.stage_dummies if law.noise.dummies == "shuffle" else None,
            values=lambda asked: SetDomain(asked.domain, asked.items),
            forecast=lambda law, asked, last_epoch: BallsIntoBinsForecast(law, last_epoch),
            examples=(
                Example(BallsIntoBinsParameters(3.0, 0.1, ("a", "b")), 1),
                Example(BallsIntoBinsParameters(4.0, 0.1, ("a", "b"), items=2), 1, minimum=3),
            ),
        ),
        Protocol(
            name="hadamard",
            parameters=HadamardParameters,
            calibrate=_calibration("hadamard", sized=True),
            law_from_json=HadamardLaw.from_json,
            randomizer=Hadamard,
            restore=Hadamard.restore,
            aggregator=lambda law, asked: HadamardAggregator(law),
            aggregator_from_bytes=lambda law, asked, data: HadamardAggregator.from_bytes(law, data),
            word_form=lambda law: law.word_form,
            needs_shuffle=True,
            capacity=stated_capacity,
            per_epoch=True,
            values=lambda asked: SetDomain(asked.domain, asked.items),
            forecast=lambda law, asked, last_epoch: HadamardForecast(law, last_epoch),
            examples=(
                Example(HadamardParameters(4.0, 0.1, ("a", "b"), 1, 1, "exact", "bernoulli"), 1, 2),
                Example(HadamardParameters(8.0, 0.1, ("a",), 1, 1, "published", "bernoulli"), 1),
            ),
        ),
        Protocol(
            name="single_message",
            parameters=SingleMessageParameters,
            calibrate=_calibration("single_message", sized=True),
            law_from_json=SingleMessageLaw.from_json,
            randomizer=SingleMessage,
            restore=SingleMessage.restore,
            aggregator=lambda law, asked: SingleMessageAggregator(law),
            aggregator_from_bytes=lambda law, asked, data: SingleMessageAggregator.from_bytes(
                law, data
            ),
            word_form=lambda law: law.word_form,
            needs_shuffle=True,
            capacity=stated_capacity,
            per_epoch=True,
            values=lambda asked: SetDomain(asked.domain, asked.items),
            forecast=lambda law, asked, last_epoch: SingleMessageForecast(law, last_epoch),
            examples=(
                Example(SingleMessageParameters(2.0, 0.05, ("a", "b")), 1, minimum=4),
                Example(SingleMessageParameters(1.5, 0.05, ("a",)), 2, minimum=3),
                Example(SingleMessageParameters(2.0, 0.05, ("a", "b"), response="rappor"), 1, 3),
                Example(SingleMessageParameters(4.0, 0.05, ("a", "b"), items=2), 2, minimum=2),
            ),
        ),
        SHUFFLED_COUNTS,
        SHUFFLED_TREE,
    ]
}
