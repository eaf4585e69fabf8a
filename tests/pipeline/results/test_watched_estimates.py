"""What metrics say of estimates: the latest ones and their changes, as far as they are honest."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.published import Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
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
