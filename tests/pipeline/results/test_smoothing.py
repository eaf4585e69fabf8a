"""Test retrospective smoothing of a horizon: records read, output, and rejections."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, Estimate
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.results.smoothing import (
    SmoothedHorizon,
    SmoothingError,
    epoch_json,
    smoothed_horizon,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from tests.support.small_run import (
    EPOCHS,
    generators,
    job_text,
    write_changes,
)

RENEWING = deploy_job(parse_job(job_text(epochs=4, more=", renew: true")), deployed_at=0)


@dataclass
class Finished:
    job: DeployedJob
    log: MemoryLog
    records: list[EstimateRecord]

    def horizon(self, horizon: int | None = None) -> SmoothedHorizon:
        number = None if horizon is None else horizon + 1
        return MemoryDriver(self.log).run(smoothed_horizon(self.job, number))


def run_to(job: DeployedJob, folder: Path, last_epoch: int, first_epoch: int = 1) -> Finished:
    change_log = load_change_log(write_changes(folder / "changes.csv"), last_epoch=EPOCHS)
    cluster = SimulatedCluster(job, generators)
    producer = Producer(
        job,
        None,
        name="p",
        transport=MemoryDriver(cluster.log),
        first_epoch=first_epoch,
        generators=generators,
    )
    producer.enroll(change_log.users)
    for epoch, values in enumerate(change_log.values_by_epoch(), 1):
        if not first_epoch <= epoch <= last_epoch:
            continue
        producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return Finished(job, cluster.log, cluster.new_estimates())


def test_horizons_are_smoothed_separately_and_the_latest_is_the_default(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=10)
    assert [run.horizon(index).first_epoch for index in range(3)] == [1, 5, 9]
    assert [len(run.horizon(index).estimates.values) for index in range(3)] == [4, 4, 2]
    latest = run.horizon()
    assert (latest.first_epoch, latest.index(8), latest.index(10)) == (9, None, 1)
    # At the latest epoch, the smoothed estimate is the published one.
    for index, last in enumerate((4, 8, 10)):
        estimate = run.records[last - 1].estimate
        assert isinstance(estimate, Estimate)
        assert estimate.value == pytest.approx(run.horizon(index).estimates.values[-1, 0])


def test_smoothing_of_a_missing_horizon_is_rejected_with_the_reason(tmp_path: Path) -> None:
    run = run_to(RENEWING, tmp_path, last_epoch=3)
    with pytest.raises(SmoothingError, match="job small has no finished epoch in horizon 2 yet"):
        run.horizon(1)
    with pytest.raises(SmoothingError, match="job small has no finished epoch yet"):
        MemoryDriver(MemoryLog()).run(smoothed_horizon(RENEWING))
    memoized = deploy_job(
        parse_job(
            "name: m\nprotocol: memoized_response\nparameters: {epsilon: 2}\nepochs: {count: 4}\n"
        ),
        deployed_at=0,
    )
    with pytest.raises(
        SmoothingError, match="protocol memoized_response does not support smoothing"
    ):
        MemoryDriver(MemoryLog()).run(smoothed_horizon(memoized))


RECORD = EstimateRecord(
    deployment=bytes(16),
    epoch=5,
    window_status=WindowStatus.RELEASED,
    closed_at=0,
    contributors=180,
    population=200,
    estimate=Estimate(-20.0, 10.0, -39.6, -0.4, reports=900, population=200),
    guarantee={},
)
RECORDS = [
    RECORD,
    replace(RECORD, epoch=6, window_status=WindowStatus.EMPTY, estimate=None),
    replace(RECORD, epoch=8),
]
HORIZON = SmoothedHorizon(
    first_epoch=5,
    estimates=SmoothedEstimates(
        values=np.array([[-5.0], [1234.5]]),
        standard_errors=np.array([4.0, 5.0]),
        half_widths=np.array([8.0, 9.0]),
        gaps=np.array([False, True]),
        population=np.array([200, 200]),
        online_shrunk=np.array([[-11.0], [12.0]]),
        shrunk=np.array([[-3.0], [4.0]]),
    ),
)


def test_json_of_a_smoothed_estimate_has_two_additional_keys() -> None:
    lines = [json.loads(json_text(epoch_json(each, HORIZON))) for each in RECORDS]
    assert lines[0] == {
        "smoothed": {
            "estimate": -5.0,
            "ci95_low": -13.0,
            "ci95_high": 3.0,
            "standard_error": 4.0,
            "flags": [],
        },
        "biased": {
            "online clipped": {"estimate": 0.0, "ci95_low": 0.0, "ci95_high": 0.0},
            "online shrunk": {"estimate": 0.0},
            "smoothed clipped": {"estimate": 0.0, "ci95_low": 0.0, "ci95_high": 3.0},
            "smoothed shrunk": {"estimate": 0.0},
        },
    }
    assert lines[1]["smoothed"]["flags"] == [GAP]
    assert lines[2]["smoothed"] is None
