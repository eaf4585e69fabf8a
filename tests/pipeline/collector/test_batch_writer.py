"""Test that acknowledged reports are written in order, and lost ones are reported as lost."""

import asyncio

import pytest

from dpstream.pipeline.collector.batch_writer import BatchWriter, IntakeCapacity
from dpstream.pipeline.collector.intake import Intake
from dpstream.pipeline.collector.responses import HttpResponse
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.topics.loose_batches import decode_loose_batch
from tests.support.device_jobs import BEGIN, DAY, KEY, LATE, SETTLING, body, device_job, envelope
from tests.support.memory_writer import MemoryWriter

NOW = BEGIN + 1000


@pytest.fixture(scope="module")
def job() -> DeployedJob:
    return device_job()


class World:
    def __init__(
        self, job: DeployedJob, capacity: IntakeCapacity | None = None, timeout: float = 60.0
    ) -> None:
        self.job = job
        self.writer = MemoryWriter()
        self.capacity = capacity or IntakeCapacity()
        self.failed: list[Exception] = []
        self.answers: list[HttpResponse] = []
        self.now: int | None = NOW
        self.batch_writer = BatchWriter(
            Intake(job, KEY),
            self.writer,
            self.capacity,
            self.failed.append,
            lambda: self.now,
            0.0,
            timeout,
        )

    def offer(self, data: bytes, now: int = NOW) -> HttpResponse | None:
        return self.batch_writer.offer(data, None, now, self.answers.append)

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]

    def rows(self) -> int:
        batches = map(decode_loose_batch, self.writer.of("phones.reports"))
        return sum(len(batch.rows) for batch in batches)


async def test_concurrent_bodies_are_written_together(job: DeployedJob) -> None:
    world = World(job)
    for _ in range(3):
        assert world.offer(body(job, 1, [envelope(job), envelope(job)])) is None
    assert world.offer(body(job, 2), BEGIN + 86_400_000) is None
    assert not world.answers
    await world.batch_writer.finish()
    assert world.statuses == [202] * 4
    assert b'"accepted":2,"epoch":1' in world.answers[0].body
    topics = [(topic, partition) for topic, partition, _ in world.writer.records]
    assert topics.count(("phones.reports", job.topics.partition_of(1))) == 1
    assert topics.count(("phones.reports", job.topics.partition_of(2))) == 1
    assert world.rows() == 7
    assert world.batch_writer.counters.acknowledged == world.batch_writer.counters.received == 7
    assert world.capacity.waiting == 0


async def test_responses_do_not_depend_on_values(job: DeployedJob) -> None:
    world = World(job)
    for words in ([], [0], [1]):
        world.offer(body(job, 1, [envelope(job, 1, words)]))
    await world.batch_writer.finish()
    assert world.statuses == [202] * 3
    assert len(set(world.answers)) == 1


async def test_enrollments_are_acknowledged_before_reports_are_written(job: DeployedJob) -> None:
    world = World(job)
    world.writer.fails, world.writer.fails_of = 1, lambda topic: topic == "phones.devices"
    world.offer(body(job))
    await world.batch_writer.finish()
    assert world.statuses == [503]
    assert not world.writer.records
    world.offer(body(job))
    await world.batch_writer.finish()
    assert [topic for topic, _, _ in world.writer.records] == ["phones.devices", "phones.reports"]
    assert world.statuses == [503, 202]


async def test_reports_are_acknowledged_once_kafka_has_them(job: DeployedJob) -> None:
    world = World(job)
    world.writer.gate = asyncio.Event()
    world.offer(body(job))
    ending = asyncio.create_task(world.batch_writer.finish())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not world.answers
    assert world.batch_writer.is_open(1)
    assert not world.batch_writer.is_open(2)
    world.writer.gate.set()
    await ending
    assert world.statuses == [202]
    assert not world.batch_writer.is_open(1)


async def test_kafka_failure_is_reported(job: DeployedJob) -> None:
    world = World(job)
    world.writer.fails, world.writer.fails_of = 1, lambda topic: topic == "phones.reports"
    world.offer(body(job))
    await world.batch_writer.finish()
    (answer,) = world.answers
    assert answer.status == 503
    assert ("Retry-After", "5") in answer.headers
    assert world.batch_writer.counters.acknowledged == 0
    assert world.capacity.waiting == 0


async def test_requests_time_out_if_kafka_is_slow(job: DeployedJob) -> None:
    world = World(job, timeout=0.0)
    world.writer.gate = asyncio.Event()
    world.offer(body(job))
    await world.batch_writer.finish()
    assert world.statuses == [503]


async def test_requests_beyond_capacity_are_rejected(job: DeployedJob) -> None:
    data = body(job)
    for capacity in (IntakeCapacity(requests=2), IntakeCapacity(envelope_bytes=2 * len(data) + 1)):
        world = World(job, capacity)
        assert [world.offer(data) for _ in range(2)] == [None, None]
        answer = world.offer(data)
        assert answer is not None
        assert (answer.status, answer.reason) == (503, "busy")
        await world.batch_writer.finish()
        assert world.offer(data) is None
        await world.batch_writer.finish()
        assert world.statuses == [202] * 3


async def test_unexpected_error_is_answered_with_status_500(
    job: DeployedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(job)

    def broken(*arguments: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(world.batch_writer.intake, "take", broken)
    world.offer(body(job))
    await world.batch_writer.finish()
    (answer,) = world.answers
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert [type(error) for error in world.failed] == [RuntimeError]
    assert world.capacity.waiting == 0


async def test_closed_epoch_accepts_no_reports(job: DeployedJob) -> None:
    world = World(job)
    world.batch_writer.close(1)
    answer = world.offer(body(job))
    assert answer is not None
    assert answer.reason == "late"
    assert world.batch_writer.counters.rejected == {"late": 1}


@pytest.mark.parametrize("says", [True, False])
async def test_report_appended_after_the_settling_time_is_late(
    job: DeployedJob, says: bool
) -> None:
    """Lateness depends on the append time, or on the clock if the topic has no append times."""
    world = World(job)
    settles = BEGIN + DAY + LATE + SETTLING
    for appended, status in ((settles - 1, 202), (settles, 409), (settles + DAY, 409)):
        world.writer.appended = lambda appended=appended: appended if says else None  # type: ignore[misc]
        # This process was suspended in between, or Kafka was unavailable.
        world.now = NOW if says else appended
        rejected = body(job, 1, [envelope(job, 1, [7])])
        assert world.offer(body(job), settles - SETTLING - 1) is None
        assert world.offer(rejected, settles - SETTLING - 1) is None
        await world.batch_writer.finish()
        assert world.statuses[-2:] == [status, 400]
    late = world.answers[2]
    assert late.reason == "late"
    assert world.batch_writer.counters.acknowledged == 1
    assert world.batch_writer.counters.epochs == {1: 1}
    assert world.batch_writer.counters.rejected == {"late": 2, "foreign": 3}
    assert world.capacity.waiting == 0


async def test_latest_append_time_of_a_group_is_returned(job: DeployedJob) -> None:
    world = World(job)
    settles = BEGIN + DAY + LATE + SETTLING
    for times, last in (([1, settles, 2], settles), ([3, 2, 1], 3), ([], None)):
        said = iter(times)
        world.writer.appended = lambda said=said: next(said)  # type: ignore[misc]
        records = [bytes([number]) for number in range(len(times))]
        assert await world.batch_writer._write_all("topic", 0, records) == last
