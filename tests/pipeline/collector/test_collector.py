"""Test a running collector, with a writer that stores its input."""

import asyncio
import io
import json
from functools import partial
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm
from prometheus_client.exposition import generate_latest

from dpstream.pipeline.addresses import is_within, networks
from dpstream.pipeline.collector import collector as collector_module
from dpstream.pipeline.collector import http_limits as rates_module
from dpstream.pipeline.collector.batch_writer import BatchWriter, IntakeCapacity, Watermarks
from dpstream.pipeline.collector.collector import Collector, CollectorSettings
from dpstream.pipeline.collector.collector_metrics import registry_of
from dpstream.pipeline.collector.http_limits import Rates
from dpstream.pipeline.collector.intake import Intake, SelectedJob, SelectedJobs
from dpstream.pipeline.collector.responses import HttpResponse
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.jobs_follower import Away
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.loose_batches import Watermark, decode_loose_batch, decode_watermark
from dpstream.topics.names import Role
from tests.support.collector_server import Client, report
from tests.support.device_jobs import BEGIN, DAY, KEY, LATE, SETTLING, body, device_job, envelope
from tests.support.memory_writer import MemoryWriter
from tests.support.waiting import until

IDENTITY = b"i" * 16


@pytest.fixture(scope="module")
def job() -> DeployedJob:
    return device_job()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY.secret)
    path.chmod(0o600)
    return path


class World:
    def __init__(self, key_file: Path | None) -> None:
        self.writer = MemoryWriter()
        self.clock = BrokerClock(own=lambda: BEGIN, steady=lambda: 0.0)
        self.said = io.StringIO()
        lines = partial(LogLines, stage="collect", worker="c", stream=self.said)
        settings = CollectorSettings(port=0, key_file=key_file)
        self.collector = Collector(settings, self.writer, self.clock, lines, IDENTITY)

    def wanted(self, *jobs: DeployedJob, phase: Phase = Phase.RUNNING) -> None:
        self.collector.take(SelectedJobs({job.name: SelectedJob(job, phase) for job in jobs}, {}))

    async def client(self) -> Client:
        listener = self.collector._listener
        assert listener is not None
        return Client(*await asyncio.open_connection("127.0.0.1", listener.port))

    def watermarks(self) -> list[Watermark]:
        return [
            decode_watermark(value)
            for value in self.writer.of("phones.reports")
            if kind_of(value) is RecordType.WATERMARK
        ]


def is_ours(value: bytes) -> bool:
    return value.startswith(b"dpst")


async def test_collector_accepts_reports_until_stop(job: DeployedJob, key_file: Path) -> None:
    world = World(key_file)
    await world.collector.start()
    client = await world.client()
    assert (await client.report(body(job))).problem == "/problems/not-ready"
    world.clock.note(BEGIN + 1000, 0.0)
    world.wanted(job)
    assert (await client.report(body(job))).status == 202
    await until(lambda: bool(world.writer.of("phones.status")))
    world.clock.note(BEGIN + DAY + LATE - 1, 0.0)
    assert (await client.report(body(job))).status == 202
    assert (await client.report(body(job, 2))).status == 202
    world.clock.note(BEGIN + DAY + LATE, 0.0)
    assert (await client.report(body(job))).problem == "/problems/late"
    assert world.collector.served[0].batch_writer._first_open == 0
    world.clock.note(BEGIN + DAY + LATE + SETTLING - 1, 0.0)
    running = world.collector._running["phones"]
    await world.collector._write_watermarks(running)
    assert not world.watermarks()
    world.clock.note(BEGIN + DAY + LATE + SETTLING, 0.0)
    await until(lambda: bool(world.watermarks()))
    assert world.watermarks() == [Watermark(job.fingerprint, job.deployment, IDENTITY, 1)]
    # Reports stay late after the clock is set back.
    world.clock.note(BEGIN + 1000, 0.0)
    assert (await client.report(body(job))).problem == "/problems/late"
    text = generate_latest(registry_of(world.collector.snapshot)).decode()
    assert 'dpstream_collector_acknowledged_reports_total{dpstream_job="phones"} 3.0' in text
    assert 'rejected_requests_total{dpstream_job="",reason="not_ready"} 1.0' in text
    assert world.collector.readiness().good
    assert world.collector.liveness().good
    world.clock.note(BEGIN + 2 * DAY + LATE + SETTLING, 0.0)
    await world.collector.stop()
    assert [mark.epoch for mark in world.watermarks()] == [1, 2]
    last = json.loads(world.writer.of("phones.status")[-1])
    assert (last["stopped"], last["worker"]) == (True, IDENTITY.hex())
    assert "epoch 1 has ended: received 2 reports" in world.said.getvalue()
    client.writer.close()


async def test_watermark_waits_for_in_flight_reports(job: DeployedJob, key_file: Path) -> None:
    world = World(key_file)
    await world.collector.start()
    world.clock.note(BEGIN + 1000, 0.0)
    world.wanted(job)
    client = await world.client()
    assert (await client.report(body(job))).status == 202
    batch_writer = world.collector.served[0].batch_writer
    world.writer.gate = asyncio.Event()
    replies: list[HttpResponse] = []
    assert batch_writer.offer(body(job), None, BEGIN + 1000, replies.append) is None
    world.clock.note(BEGIN + DAY + LATE + SETTLING, 0.0)
    await until(lambda: batch_writer._first_open == 2)
    await asyncio.sleep(0)
    assert RecordType.WATERMARK not in map(kind_of, filter(is_ours, world.writer.requested))
    world.writer.gate.set()
    await until(lambda: bool(world.watermarks()))
    kinds = [kind_of(value) for value in world.writer.of("phones.reports")]
    assert kinds == [RecordType.LOOSE_BATCH, RecordType.LOOSE_BATCH, RecordType.WATERMARK]
    # Its pending report can be in the log before the watermark and still be late.
    assert [reply.status for reply in replies] == [409]
    await world.collector.stop()
    client.writer.close()


async def test_reports_are_rejected_after_topic_recreation(
    job: DeployedJob, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "_TOPICS_SECONDS", 0.01)
    deployed = job.model_copy(update={"topic_ids": {Role.REPORTS: "old", Role.DEVICES: "same"}})
    world = World(key_file)
    world.writer.ids = {"phones.reports": "old", "phones.devices": "same"}
    await world.collector.start()
    world.clock.note(BEGIN + 1000, 0.0)
    client = await world.client()
    world.wanted(deployed)
    assert (await client.report(body(deployed))).status == 202
    # The writer reports that the topic no longer exists.
    del world.writer.ids["phones.devices"]
    await asyncio.sleep(0.05)
    assert (await client.report(body(deployed))).status == 202
    world.writer.ids["phones.reports"] = "new"
    await until(lambda: not world.collector.served)
    said = world.said.getvalue()
    assert "topic phones.reports was deleted and recreated" in said
    assert "dpstream undeploy phones --delete-topics" in said
    assert "undeployed or replaced" not in said
    for _ in range(2):
        assert (await client.report(body(deployed))).status == 503
        # Reports are also rejected after other job updates.
        world.wanted(deployed)
    again = device_job()
    world.wanted(again)
    assert (await client.report(body(again))).status == 202
    await world.collector.stop()
    client.writer.close()


async def test_collector_tracks_added_and_removed_jobs(job: DeployedJob, key_file: Path) -> None:
    world = World(key_file)
    await world.collector.start()
    world.clock.note(BEGIN + 1000, 0.0)
    client = await world.client()
    world.wanted(job)
    assert (await client.report(body(job))).status == 202
    again = device_job()
    world.wanted(again)
    gone = await client.report(body(job))
    assert gone.problem == "/problems/deployment"
    assert json.loads(gone.body)["deployment"] == again.deployment.hex()
    assert (await client.report(body(again))).status == 202
    longer = again.model_copy(
        update={"devices": again.devices.model_copy(update={"late": 60.0})}  # type: ignore[union-attr]
    )
    before = world.collector.served[0].batch_writer
    world.wanted(longer)
    assert world.collector.served[0].batch_writer is before
    assert before.counters.acknowledged == 1
    world.wanted(longer, phase=Phase.DRAINED)
    assert (await client.report(body(again))).problem == "/problems/drained"
    world.wanted()
    assert (await client.report(body(again))).problem == "/problems/unknown-job"
    world.collector.take(Away("no broker listens"))
    world.collector.take(None)
    assert "Kafka does not answer: no broker listens" in world.said.getvalue()
    await world.collector.stop()
    client.writer.close()


async def test_running_collector_tracks_token_key_rotation(key_file: Path) -> None:
    signers = [Ed25519PrivateKey.generate() for _ in range(2)]

    def jwk(number: int) -> dict[str, object]:
        said = OKPAlgorithm.to_jwk(signers[number].public_key(), as_dict=True)
        return {**said, "kid": str(number)}

    def bearer(number: int) -> str:
        claims = {"sub": "ann", "aud": "phones", "exp": BEGIN // 1000 + 600}
        made = jwt.encode(claims, signers[number], "EdDSA", headers={"kid": str(number)})
        return f"Authorization: Bearer {made}"

    world = World(key_file)
    await world.collector.start()
    world.clock.note(BEGIN + 1000, 0.0)
    job = device_job(tokens={"keys": [jwk(0)]})
    world.wanted(job)
    client = await world.client()
    assert (await client.report(body(job), bearer(0))).status == 202
    # This report is in flight while the keys are changed.
    batch_writer = world.collector.served[0].batch_writer
    world.writer.gate = asyncio.Event()
    client.send(report(body(job), bearer(0)))
    await until(lambda: batch_writer.is_open(1))
    assert job.devices is not None
    other = device_job(tokens={"keys": [jwk(1)]}).devices
    world.wanted(job.model_copy(update={"devices": other}))
    assert world.collector.served[0].batch_writer is batch_writer
    world.writer.gate.set()
    assert (await client.reply()).status == 202
    assert (await client.report(body(job), bearer(0))).problem == "/problems/token"
    assert (await client.report(body(job), bearer(1))).status == 202
    await world.collector.stop()
    client.writer.close()


async def test_collector_key_of_another_job_is_rejected(job: DeployedJob, tmp_path: Path) -> None:
    path = tmp_path / "other"
    world = World(path)
    world.wanted(job)
    assert f"collector key {path} does not exist" in world.said.getvalue()
    path.write_bytes(b"x" * 32)
    path.chmod(0o600)
    world.wanted(job)
    assert "the collector key does not match the deployment" in world.said.getvalue()
    assert not world.collector.served
    assert world.collector.service.unserved == {"phones"}
    await world.collector.start()
    client = await world.client()
    for reply in (await client.report(body(job)), await client.ask("GET", "/v1/jobs/phones")):
        assert reply.problem == "/problems/unavailable"
    await world.collector.stop()
    client.writer.close()


def test_watermarks_start_at_the_first_open_epoch(job: DeployedJob) -> None:
    intake = Intake(job, KEY)
    assert Watermarks(intake, BEGIN + 3 * DAY + LATE + SETTLING).next == 4
    # The third day has ended, and its reports are still accepted.
    open_still = Watermarks(intake, BEGIN + 3 * DAY + LATE + SETTLING - 1)
    assert open_still.next == 3
    assert open_still.due(BEGIN + 3 * DAY + LATE + SETTLING - 1) == []
    assert open_still.due(BEGIN + 5 * DAY + LATE + SETTLING) == [3, 4, 5]
    open_still.mark_sent(3)
    assert open_still.due(BEGIN + 99 * DAY) == list(range(4, 17))
    assert Watermarks(intake, BEGIN - 10 * DAY).next == 1
    assert Watermarks(intake, BEGIN + 99 * DAY).due(BEGIN + 100 * DAY) == []


def test_rate_limit_buckets_refill_and_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "REMEMBERED", 50)
    now = 0.0
    rates = Rates(2.0, lambda: now, burst=1)
    assert [rates.wait("2001:db8::1"), rates.wait("2001:db8::2")] == [0, 1]
    assert not rates.wait("2001:db8:0:1::1")
    now = 0.5
    assert [rates.wait("2001:db8::3"), rates.wait("2001:db8::3")] == [0, 1]
    for number in range(60):
        rates.wait(str(number))
    assert len(rates._buckets) == 50
    assert not rates.wait("not:an:address")


def test_rate_limits_count_reports_rather_than_requests() -> None:
    now = 0.0
    rates = Rates(10.0, lambda: now, burst=20)
    assert not rates.wait("192.0.2.1")
    rates.charge("192.0.2.1", 99)
    assert rates.wait("192.0.2.1") == 9
    now = 8.0
    assert rates.wait("192.0.2.1")
    now = 8.11
    assert not rates.wait("192.0.2.1")
    now = 1000.0
    assert [rates.wait("192.0.2.1") for _ in range(21)] == [0] * 20 + [1]


def test_ipv4_mapped_addresses_count_as_ipv4() -> None:
    rates = Rates(1.0, lambda: 0.0, burst=1)
    assert not rates.wait("::ffff:192.0.2.1")
    assert not rates.wait("::ffff:198.51.100.7")
    assert rates.wait("192.0.2.1")
    among = networks(["10.0.0.0/8", "2001:db8::1"])
    for address, within in (
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::1", True),
        ("2001:db8::2", False),
        ("", False),
        ("10.1.2", False),
    ):
        assert is_within(address, among) is within
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        networks(["10.0.0.0/99"])


NOW = BEGIN + 1000


class WriterWorld:
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
    world = WriterWorld(job)
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
    world = WriterWorld(job)
    for words in ([], [0], [1]):
        world.offer(body(job, 1, [envelope(job, 1, words)]))
    await world.batch_writer.finish()
    assert world.statuses == [202] * 3
    assert len(set(world.answers)) == 1


async def test_enrollments_are_acknowledged_before_reports_are_written(job: DeployedJob) -> None:
    world = WriterWorld(job)
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
    world = WriterWorld(job)
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
    world = WriterWorld(job)
    world.writer.fails, world.writer.fails_of = 1, lambda topic: topic == "phones.reports"
    world.offer(body(job))
    await world.batch_writer.finish()
    (answer,) = world.answers
    assert answer.status == 503
    assert ("Retry-After", "5") in answer.headers
    assert world.batch_writer.counters.acknowledged == 0
    assert world.capacity.waiting == 0


async def test_requests_time_out_if_kafka_is_slow(job: DeployedJob) -> None:
    world = WriterWorld(job, timeout=0.0)
    world.writer.gate = asyncio.Event()
    world.offer(body(job))
    await world.batch_writer.finish()
    assert world.statuses == [503]


async def test_requests_beyond_capacity_are_rejected(job: DeployedJob) -> None:
    data = body(job)
    for capacity in (IntakeCapacity(requests=2), IntakeCapacity(envelope_bytes=2 * len(data) + 1)):
        world = WriterWorld(job, capacity)
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
    world = WriterWorld(job)

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
    world = WriterWorld(job)
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
    world = WriterWorld(job)
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
    world = WriterWorld(job)
    settles = BEGIN + DAY + LATE + SETTLING
    for times, last in (([1, settles, 2], settles), ([3, 2, 1], 3), ([], None)):
        said = iter(times)
        world.writer.appended = lambda said=said: next(said)  # type: ignore[misc]
        records = [bytes([number]) for number in range(len(times))]
        assert await world.batch_writer._write_all("topic", 0, records) == last
