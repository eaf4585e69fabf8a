"""Test means over windows of epochs: covered epochs, rejected windows, printed output."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import (
    INCOMPLETE,
    NORMAL_95,
    Estimate,
    Participation,
    Published,
)
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.results.changes import ChangeError, changes
from dpstream.pipeline.results.counts_queries import Query, Top
from dpstream.pipeline.results.query_options import QueryOptions
from dpstream.pipeline.results.roll_ups import (
    RollUpError,
    WindowRecord,
    check_window,
    roll_ups,
    window_mean,
)
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job
from tests.support.set_jobs import Run

PEOPLE = 1_000


def deployed(
    protocol: str = "sampled_response", count: int = 12, renew: bool = False, **parameters: Any
) -> DeployedJob:
    job = new_job(
        "weeks", protocol, {"epsilon": 4.0, **parameters}, count=count, renew=renew, minimum=50
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(16))


JOB = deployed(reports=1)
TWICE = deployed(reports=3)
# Devices reverse some bits for good, so part of the error is the same at all epochs.
PERMANENT = deployed("fragments", delta=1e-6, domain=["a", "b"], permanent=True)


def record(
    epoch: int, estimate: Published | None, people: int = PEOPLE, present: int = 90
) -> EstimateRecord:
    status = WindowStatus.RELEASED if estimate is not None else WindowStatus.SUPPRESSED
    return EstimateRecord(
        bytes(16), epoch, status, epoch, present, people, estimate, {"epsilon": 4.0}
    )


def count(epoch: int, people: int = PEOPLE) -> EstimateRecord:
    return record(epoch, Estimate(100.0 * epoch, 30.0, 45.0, 160.0, 80, people), people)


def means(job: DeployedJob, records: list[EstimateRecord], epochs: int) -> list[WindowRecord]:
    return list(roll_ups(job, records, epochs))


def test_mean_has_the_summed_variance_and_counts_reports_of_all_epochs() -> None:
    found = means(JOB, [count(epoch, 990 + 10 * epoch) for epoch in range(1, 10)], 4)
    assert [(each.first_epoch, each.epoch, each.averaged) for each in found] == [
        *((1, 4, 4), (5, 8, 4))
    ]
    estimate = found[1].estimate
    assert isinstance(estimate, Estimate)
    assert estimate.value == 650.0
    # 30 / sqrt(4)
    assert estimate.standard_error == 15.0
    ends = 650 - NORMAL_95 * 15, 650 + NORMAL_95 * 15
    assert (estimate.ci95_low, estimate.ci95_high) == pytest.approx(ends)
    assert (estimate.reports, estimate.flags) == (320, ())
    assert estimate.population == found[1].population == 1_055
    assert found[1].to_json()["first_epoch"] == 5


def test_mean_omits_epochs_without_an_estimate_and_gets_a_flag() -> None:
    records = [record(1, None), count(2), count(3), count(4), *[record(n, None) for n in (5, 6)]]
    first, second = means(JOB, records, 3)
    assert isinstance(first.estimate, Estimate)
    assert (first.estimate.value, first.averaged) == (250.0, 2)
    assert first.estimate.standard_error == pytest.approx(30 / math.sqrt(2))
    assert first.flags == (INCOMPLETE,)
    assert isinstance(second.estimate, Estimate)
    assert (second.estimate.value, second.averaged) == (400.0, 1)
    (nothing,) = means(JOB, [record(epoch, None) for epoch in (1, 2, 3)], 3)
    assert (nothing.estimate, nothing.window_status) == (None, WindowStatus.SUPPRESSED)
    # Epochs of devices can start later than 1, and a record can be unreadable.
    (late,) = means(JOB, [count(5), count(6), count(8)], 4)
    assert (late.first_epoch, late.averaged, late.flags) == (5, 3, (INCOMPLETE,))


def test_mean_of_items_is_computed_per_item() -> None:
    job = deployed("projective_geometry", domain=["a", "b"])

    def items(epoch: int, deviation: float, *values: float) -> EstimateRecord:
        return record(epoch, ItemEstimates(np.array(values), deviation, 9.0, 5, PEOPLE))

    (mean,) = means(job, [items(1, 3.0, 1.0, 2.0), items(2, 4.0, 5.0, -3.0)], 2)
    assert isinstance(mean.estimate, ItemEstimates)
    assert mean.estimate.values.tolist() == [3.0, -0.5]
    assert mean.estimate.standard_error == 2.5
    assert mean.estimate.half_width == pytest.approx(2.5 * NORMAL_95)


def test_mean_over_epochs_of_a_numeric_job_provides_ranges_and_quantiles() -> None:
    job = deployed(low=0, high=64, buckets=64)
    devices, rng = job.randomizer(), seeded_generator(1)
    devices.enroll(60_000, rng)
    values = 1 + np.minimum(np.random.default_rng(2).exponential(12, 60_000), 63).astype(np.int64)
    records, aggregator = [], job.aggregator()
    participation = Participation.constant(12, 60_000)
    for epoch in range(1, 13):
        aggregator.add(epoch, written_out(devices.report(epoch, values, None, rng)), None)
        estimate = aggregator.estimate(epoch, participation)
        records.append(record(epoch, estimate, 60_000, 5_000))
    (mean,) = means(job, records, 12)
    truths = {
        "0:8": float((values <= 8).sum()),
        "8:64": float((values > 8).sum()),
        "0.5": float(np.median(values - 1)),
    }
    for options in (QueryOptions(ranges=["0:8", "8:64"]), QueryOptions(quantiles=["0.5"])):
        query = Query(job.domain, options.counts_query(job.domain) or Top(1))
        once, over = query.answers(records[0].estimate), query.answers(mean.estimate)
        for single, each in zip(once, over, strict=True):
            low, high = each.ci95_low or 0.0, each.ci95_high or 0.0
            assert low <= truths[each.name] <= high
            assert high - low < ((single.ci95_high or 0.0) - (single.ci95_low or 0.0)) * 0.6


def test_errors_of_means_after_a_missing_epoch_are_unknown_until_the_next_horizon() -> None:
    job = deployed("value_stream", 4, renew=True, max_changes=2)
    found = means(job, [count(epoch) for epoch in (1, 2, 4, 5, 6, 7, 8)], 2)
    assert [(each.epoch, each.averaged) for each in found] == [(2, 2), (4, 0), (6, 2), (8, 2)]
    independent = 30 / math.sqrt(2)
    assert isinstance(found[0].estimate, Estimate)
    # The error of an epoch remains in part in the next one.
    assert (found[0].estimate.standard_error or 0.0) > 1.1 * independent


@pytest.mark.parametrize(
    ("job", "epochs", "message"),
    [
        (JOB, 13, "the job has 12 epochs"),
        (TWICE, 5, "of more than 4 epochs a device answers more than once"),
        (deployed("future_rand", max_changes=2), 4, "future_rand: the published data do not show"),
        (deployed("range_values", max_changes=2, low=0, high=8, buckets=8), 4, "a single count"),
        (PERMANENT, 4, "fragments: the published data do not show"),
    ],
)
def test_window_whose_mean_has_no_interval_is_rejected_with_the_reason(
    job: DeployedJob, epochs: int, message: str
) -> None:
    with pytest.raises(RollUpError, match=message):
        check_window(job, epochs)


def test_windows_are_limited_to_epochs_in_which_no_user_answers_twice() -> None:
    check_window(JOB, 12)
    check_window(TWICE, 4)
    with pytest.raises(RollUpError, match="of more than 12 epochs"):
        check_window(deployed(renew=True, reports=1), 13)


def test_interval_of_a_change_between_windows_accounts_for_their_correlation() -> None:
    records = [count(epoch) for epoch in range(1, 13)]
    found = list(changes(JOB, roll_ups(JOB, records, 3), 1, 3))
    assert [each.epoch for each in found] == [6, 9, 12]
    estimate = found[0].estimate
    assert isinstance(estimate, Estimate)
    assert estimate.value == pytest.approx(300.0)
    persisting = PEOPLE**2 / (PEOPLE - 1) * (0.2 * 0.8 + 0.5 * 0.5) / 3
    assert estimate.standard_error == pytest.approx(math.sqrt(2 * 900 / 3 + persisting))
    with pytest.raises(ChangeError, match="more than 12 epochs a device answers more than once"):
        list(changes(JOB, roll_ups(JOB, records, 5), 2, 5))
    with pytest.raises(ChangeError, match="of two windows"):
        list(changes(deployed("value_stream", max_changes=2), [], 1, 3))


def test_mean_of_any_window_can_be_queried_by_naming_its_epochs() -> None:
    records = [count(epoch) for epoch in range(1, 8)]
    mean = window_mean(JOB, records, 2, 6)
    assert isinstance(mean.estimate, Estimate)
    assert (mean.estimate.value, mean.first_epoch, mean.epoch, mean.averaged) == (400.0, 2, 6, 5)
    with pytest.raises(RollUpError, match="epoch 8 of job weeks is not published yet"):
        window_mean(JOB, records, 5, 8)
    with pytest.raises(RollUpError, match="epochs 1 to 2 have no estimates"):
        window_mean(JOB, [record(1, None), record(2, None)], 1, 2)


@pytest.mark.parametrize(
    ("roll_up", "message"),
    [
        ([4, 2], "distinct numbers in ascending order"),
        ([1], "each at least 2"),
        ([], "up to 8 window lengths in epochs"),
        ([5], "answers more than once"),
    ],
)
def test_invalid_roll_ups_in_a_job_file_are_rejected(roll_up: list[int], message: str) -> None:
    with pytest.raises(JobError, match=message):
        new_job(
            "weeks", "sampled_response", {"epsilon": 4, "reports": 3}, count=12, roll_up=roll_up
        ).calibrate()


JOB_FILE = """
name: sets
protocol: sampled_response
parameters: {epsilon: 4, reports: 1}
epochs: {count: 6, start: 2024-01-01, length: P1D}
shuffle: {minimum: 10}
roll_up: [3]
"""


def test_commands_print_means_of_windows(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB_FILE)
    assert dpstream("deploy", path).code == 0
    run = Run(cluster, "sets")
    assert run.job.roll_up == (3,)
    for epoch in range(1, 7):
        run.report(epoch, [str(int(user % 10 < 3)) for user in range(300)])
    published = [EstimateRecord.from_bytes(each) for each in run.driver.log.values(Role.ESTIMATES)]
    (first, second) = means(run.job, published, 3)
    rows = [
        *csv.DictReader(
            dpstream("estimates", "sets", "--interval", 3, "--csv", "-").output.splitlines()
        )
    ]
    assert [(row["first_epoch"], row["epoch"], row["start"][:10]) for row in rows] == [
        *(("1", "3", "2024-01-01"), ("4", "6", "2024-01-04"))
    ]
    for row, mean in zip(rows, (first, second), strict=True):
        assert isinstance(mean.estimate, Estimate)
        assert float(row["mean"]) == mean.estimate.value
        assert float(row["standard_error"]) == mean.estimate.standard_error
    table = dpstream("estimates", "sets", "--interval", 3).output
    assert "mean over 3 epochs" in table
    change = json.loads(
        dpstream("estimates", "sets", "--interval", 3, "--change", 1, "--json").output
    )
    assert (change["first_epoch"], change["change_since"]) == (4, 3)
    queried = json.loads(dpstream("query", "sets", "--epochs", "4..6", "--json").output)
    assert queried["estimate"] == second.to_json()["estimate"]
    assert "mean of 3 epochs 4 to 6" in dpstream("query", "sets", "--epochs", "4..6").output
    rejected = dpstream("query", "sets", "--epochs", "4..7")
    assert rejected.code != 0
    assert "the last epoch of job sets is 6" in rejected.errors
    path.write_text(JOB_FILE.replace("[3]", "[2, 3]"))
    assert "roll_up" in dpstream("deploy", path).output
