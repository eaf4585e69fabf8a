"""Test that only randomized reports depend on values, and that leaks are detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.devices import epoch_records
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.stages.producer_source import ProducerSource
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from tests.attacks.examples import EXAMPLES, case_of
from tests.attacks.side_channels import compare_neighbors
from tests.conformance.cases import CASES, Case

SUPPRESSED = ("future_rand-0", "fragments-0", "shuffled_counts-0", "count_min-0")
"""Examples whose suppressed windows ``make test`` checks; ``make verify`` checks all."""


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_neighboring_inputs_yield_the_same_observations(case: Case) -> None:
    assert compare_neighbors(case, seed=3) == ""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if str(case) in SUPPRESSED else pytest.mark.verify)
        for case in CASES
    ],
    ids=str,
)
def test_neighboring_inputs_yield_the_same_observations_in_suppressed_windows(case: Case) -> None:
    assert compare_neighbors(case, seed=3, released=False) == ""


def leaks_in_separate_batch(monkeypatch: pytest.MonkeyPatch) -> str:
    """Send a batch twice if the sum of values is odd."""
    report_all, records = Producer.report_all, epoch_records.DrawnEpoch.records
    sums = [0]

    def note(producer: Producer, epoch: int, values: Any) -> None:
        sums[0] = int(values.sum())
        report_all(producer, epoch, values)

    def twice(drawn: Any, reports: Any, generator: Any) -> Any:
        for role, found in records(drawn, reports, generator):
            held = list(found)
            yield role, held[:1] * (sums[0] % 2) + held

    monkeypatch.setattr(Producer, "report_all", note)
    monkeypatch.setattr(epoch_records.DrawnEpoch, "records", twice)
    return "reports"


def leaks_in_heartbeat(monkeypatch: pytest.MonkeyPatch) -> str:
    heartbeat = ShuffleStage.heartbeat
    seen: list[int] = []
    record = ShuffleStage.record

    def noting(stage: Any, partition: int, offset: int, value: bytes, *more: Any) -> Any:
        seen.append(int(np.frombuffer(value, np.uint8).sum()))
        return record(stage, partition, offset, value, *more)

    monkeypatch.setattr(ShuffleStage, "record", noting)
    monkeypatch.setattr(
        ShuffleStage, "heartbeat", lambda stage: {**heartbeat(stage), "sum": sum(seen[-9:])}
    )
    return "heartbeats"


@pytest.mark.parametrize("leak", [leaks_in_separate_batch, leaks_in_heartbeat])
def test_value_in_a_side_channel_is_detected(
    leak: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = leak(monkeypatch)
    assert reason in compare_neighbors(case_of("split_budget"), seed=3)


def test_release_of_a_window_below_the_minimum_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of("split_budget")
    job = job_of(case, epochs=4, minimum=120)
    shuffle = job.shuffle.model_copy(update={"minimum": 1})
    init = ProducerSource.__init__

    def careless(source: Any, job: Any, *given: Any) -> None:
        init(source, job.model_copy(update={"shuffle": shuffle}), *given)

    monkeypatch.setattr(ProducerSource, "__init__", careless)
    assert "below the job's minimum" in compare_neighbors(case, seed=4, released=False)
