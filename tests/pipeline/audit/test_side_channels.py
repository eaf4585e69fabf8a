"""Neighbours look alike, and whoever tells values elsewhere is convicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.audit.side_channels import compare_neighbours
from pipeline.conformance.cases import Case
from pipeline.conformance.finding import find_cases
from pipeline.devices import epoch_records
from pipeline.devices.producer import Producer
from pipeline.stages.shuffle_stage import ShuffleStage


def case_of(name: str) -> Case:
    return find_cases(name)[0]


@pytest.mark.parametrize("name", ["future_rand", "fragments", "shuffled_counts", "count_min"])
def test_neighbours_look_alike(name: str) -> None:
    for released in (True, False):
        finding = compare_neighbours(case_of(name), seed=3, released=released)
        assert not finding.convicted, finding.reason


def tells_in_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> str:
    """A batch is sent twice where the sum of values is odd."""
    report_all, records = Producer.report_all, epoch_records.DrawnEpoch.records
    sums = [0]

    def note(producer: Producer, epoch: int, values: Any) -> None:
        sums[0] = int(values.sum())
        report_all(producer, epoch, values)

    def twice(drawn: Any, reports: Any, generator: Any) -> Any:
        for role, partition, found in records(drawn, reports, generator):
            held = list(found)
            yield role, partition, held[:1] * (sums[0] % 2) + held

    monkeypatch.setattr(Producer, "report_all", note)
    monkeypatch.setattr(epoch_records.DrawnEpoch, "records", twice)
    return "reports"


def tells_in_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> str:
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


@pytest.mark.parametrize("leak", [tells_in_a_batch_of_its_own, tells_in_a_heartbeat])
def test_who_tells_values_elsewhere_is_convicted(
    leak: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = leak(monkeypatch)
    finding = compare_neighbours(case_of("split_budget"), seed=3)
    assert finding.convicted
    assert told in finding.reason
