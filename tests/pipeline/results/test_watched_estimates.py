"""What metrics say of estimates: the latest ones and their changes, as far as they are honest."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.estimate import GAP, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.published import Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.workers.metrics import WorkerSnapshot, metric_families
from dpstream.pipeline.kafka.workers.published_numbers import PublishedNumber, PublishedNumbers
from dpstream.pipeline.results.changes import changes
from dpstream.pipeline.results.watched_estimates import MOST_WATCHED, WatchedEstimates
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate


def job_of(protocol: str, parameters: str) -> DeployedJob:
    text = f"name: a\nprotocol: {protocol}\nparameters: {{{parameters}}}\nepochs: {{count: 9}}\n"
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


COUNT = job_of("value_stream", "epsilon: 1, changes: 2")


def labels(count: int) -> str:
    return f"[{', '.join(f'item {number}' for number in range(count))}]"


def items_job(count: int) -> DeployedJob:
    return job_of("hadamard_values", f"epsilon: 8, changes: 1, domain: {labels(count)}")


def record(epoch: int, estimate: Published | None) -> EstimateRecord:
    return EstimateRecord(bytes(16), epoch, Fate.RELEASED, 0, 90, 100, estimate, {})


def count(value: float, *flags: str) -> Estimate:
    return Estimate.around(value, 10.0, 19.6, 70, 100, flags)


def test_a_count_has_its_interval_and_its_change_one_of_its_own() -> None:
    watched = WatchedEstimates(COUNT)
    records = [record(1, count(50.0)), record(2, count(80.0))]
    watched.next(records[0])
    assert watched.latest == PublishedNumbers(1, (PublishedNumber("", 50.0, (30.4, 69.6)),))
    watched.next(records[1])
    assert watched.latest is not None
    (number,) = watched.latest.numbers
    (change,) = (each.summary for each in changes(COUNT, records, 1))
    assert (number.change, number.change_interval) == (30.0, (change.low, change.high))


def test_of_what_was_never_received_no_interval_is_told() -> None:
    watched = WatchedEstimates(COUNT)
    for each in (record(1, count(50.0)), record(2, count(80.0, GAP))):
        watched.next(each)
    assert watched.latest is not None
    assert watched.latest.numbers == (PublishedNumber("", 80.0, None, 30.0, None),)


def test_an_epoch_without_an_estimate_says_nothing() -> None:
    watched = WatchedEstimates(COUNT)
    for each in (record(1, count(50.0)), record(2, None)):
        watched.next(each)
    assert watched.latest == PublishedNumbers(2, ())


def test_starting_over_forgets_what_was_published() -> None:
    watched = WatchedEstimates(COUNT)
    watched.next(record(1, count(50.0)))
    watched.start_over()
    watched.next(record(2, count(80.0)))
    assert watched.latest is not None
    assert [number.change for number in watched.latest.numbers] == [None]


@pytest.mark.parametrize(("size", "told"), [(MOST_WATCHED, MOST_WATCHED), (MOST_WATCHED + 1, 0)])
def test_the_items_of_short_lists_are_told(size: int, told: int) -> None:
    watched = WatchedEstimates(items_job(size))
    watched.next(record(1, ItemEstimates(np.arange(float(size)), 5.0, 9.8, 70, 100)))
    assert watched.latest is not None
    assert [number.item for number in watched.latest.numbers] == [
        f"item {number}" for number in range(told)
    ]


def test_what_is_no_estimate_of_the_job_says_nothing() -> None:
    watched = WatchedEstimates(items_job(3))
    watched.next(record(1, ItemEstimates(np.zeros(5), 5.0, 9.8, 70, 100)))
    watched.next(record(2, count(50.0)))
    assert watched.latest == PublishedNumbers(2, ())


def test_metrics_leave_out_what_is_not_known() -> None:
    numbers = (
        PublishedNumber("walk", 5.0, (1.0, 9.0), -2.0, (-4.0, 0.0)),
        PublishedNumber("bus", 6.0),
    )
    estimates = PublishedNumbers(7, numbers)
    snapshot = WorkerSnapshot("a", "publish", "g", "t", False, estimates=estimates)
    told = {
        (sample.name, sample.labels.get("item")): sample.value
        for family in metric_families(snapshot)
        for sample in family.samples
        if sample.name.startswith("dpstream_estimate")
    }
    assert told == {
        ("dpstream_estimate_epoch", None): 7,
        ("dpstream_estimate", "walk"): 5.0,
        ("dpstream_estimate_low", "walk"): 1.0,
        ("dpstream_estimate_high", "walk"): 9.0,
        ("dpstream_estimate_change", "walk"): -2.0,
        ("dpstream_estimate_change_low", "walk"): -4.0,
        ("dpstream_estimate_change_high", "walk"): 0.0,
        ("dpstream_estimate", "bus"): 6.0,
    }
