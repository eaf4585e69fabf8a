"""Test ``dpstream estimates``: records read, and printed output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

import pytest
from kafka.errors import KafkaTimeoutError

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.cli.answer_lines import printed_lines
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from tests.support.small_run import EPOCHS, job_text

JOB = deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))
ESTIMATE = Estimate(1234.56, 78.9, 1079.9, 1389.2, reports=1_000_000, population=28_785)


def record(epoch: int, estimate: Estimate | None = ESTIMATE, **changed: object) -> EstimateRecord:
    plain = EstimateRecord(
        deployment=JOB.deployment,
        epoch=epoch,
        window_status=WindowStatus.RELEASED,
        closed_at=1_700_000_000_123,
        contributors=28_000,
        population=28_785,
        estimate=estimate,
        guarantee={"epsilon": 4.0},
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


@dataclass
class Topic:
    values: list[bytes] = field(default_factory=list)
    outages: int = 0

    def read(self, topic: str, partition: int, start: int) -> Iterator[LogRecord]:
        assert topic == "small.estimates"
        if self.outages:
            self.outages -= 1
            raise KafkaTimeoutError("no answer")
        for offset, value in enumerate(self.values[start:], start):
            yield LogRecord(offset, value)

    def end_offsets(self, topic: str) -> list[int]:
        return [len(self.values)]

    def reader(self, job: DeployedJob = JOB, last: int | None = None) -> EstimateReader:
        return EstimateReader(cast(Cluster, self), job, last)


def test_only_the_first_estimate_record_for_an_epoch_counts() -> None:
    repeated = record(1, replace(ESTIMATE, value=1.0))
    foreign = record(2, deployment=b"f" * 16)
    published = [record(1), repeated, foreign, record(2)]
    topic = Topic([each.to_bytes() for each in published] + [b"no record"])
    reader = topic.reader()
    assert list(reader.read()) == [record(1), record(2)]
    assert list(reader.read()) == []
    topic.values.append(record(3).to_bytes())
    assert list(reader.read()) == [record(3)]


LONG = deploy_job(parse_job(job_text(epochs=4_000)), deployed_at=0, deployment=bytes(16))


@pytest.mark.parametrize(
    ("last", "found", "leaves_out"),
    [(1, [1_000], True), (3, [998, 999, 1_000], True), (1_000, None, False), (5_000, None, False)],
)
@pytest.mark.parametrize("repeated", [(), range(40, 50)])
def test_option_for_the_latest_epochs_reads_no_earlier_records(
    last: int, found: list[int] | None, leaves_out: bool, repeated: Sequence[int]
) -> None:
    values = [record(epoch).to_bytes() for epoch in range(1, 1_001)]
    # The read starts at records that the publisher repeated.
    place = 1_000 - last - 128
    if place > 0:
        values[place + len(repeated) : place + len(repeated)] = [values[each] for each in repeated]
    topic = Topic(values)
    reader = topic.reader(LONG, last)
    assert [each.epoch for each in reader.read()] == (found or list(range(1, 1_001)))
    assert reader.leaves_out is leaves_out
    topic.values += [record(1_000).to_bytes(), record(1_001).to_bytes()]
    assert [each.epoch for each in reader.read()] == [1_001]


def test_follow_option_ends_after_the_last_epoch() -> None:
    topic = Topic()
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        topic.values.append(record(waits).to_bytes())

    found = [each.epoch for each in topic.reader().follow(wait=wait)]
    assert found == list(range(1, EPOCHS + 1))
    assert waits == EPOCHS


def test_follow_option_waits_for_the_broker_and_logs_the_outage_once() -> None:
    topic = Topic([record(epoch).to_bytes() for epoch in range(1, EPOCHS + 1)], outages=3)
    messages: list[str] = []
    followed = topic.reader().follow(messages.append, wait=lambda seconds: None)
    assert [each.epoch for each in islice(followed, 2)] == [1, 2]
    assert len(messages) == 1
    assert "does not respond" in messages[0]
    assert len(list(followed)) == EPOCHS - 2
    assert messages[1:] == ["Kafka is back"]


def test_table_for_a_single_count_has_columns_for_reports_and_users() -> None:
    lines = [*printed_lines(JOB, None, "table", [record(1), record(12, None)])]
    assert [line.split() for line in lines] == [
        ["epoch", "estimate", "±", "sd", "95", "%", "low", "high", "reports", "population"],
        ["1", "1,235", "78.9", "1,080", "1,389", "1,000,000", "28,785"],
        ["12", "-", "-", "-", "-", "0", "28,785"],
    ]
    assert len({len(line) for line in lines}) == 1, "they are aligned"
