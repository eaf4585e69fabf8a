"""A relay: what gateways sent is in Kafka when they are told so, unchanged, and counts once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from pipeline.actions import Action, Append, Flush, Steps
from pipeline.collector.gathering import WriteError
from pipeline.devices.producer import Producer
from pipeline.devices.relayed import RelayRefusalError, RelayTransport
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.kafka.workers.health import Health
from pipeline.relay.bundling import Bundler
from pipeline.relay.intake import Place, taken
from pipeline.relay.metrics import registry_of
from pipeline.relay.relay import Relay, RelayableJobs, RelaySettings
from pipeline.relay.service import digests_of
from pipeline.simulation.memory import MemoryDriver, MemoryLog, MemoryWorker
from pipeline.stages.admission import Refusal
from pipeline.stages.shuffle_stage import ShuffleStage
from pipeline.stages.shuffling_stage import shuffling_stage
from topics.batches import (
    Batch,
    Punctuation,
    claimed_epoch,
    encode_batch,
    encode_punctuation,
)
from topics.bundles import Bundle, encode_bundle, is_bundle, records_in
from topics.frames import PAYLOAD_TARGET
from topics.manifests import decode_manifest, read_head
from topics.names import Role
from topics.records import Reason, Registration
from topics.words import Words

GATEWAYS = 5
TOKEN = b"a token of sixteen"


def deployed(**more: Any) -> DeployedJob:
    values = {
        "name": "relayed",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": 8},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": GATEWAYS},
        "topics": {"partitions": 2},
        **more,
    }
    job = deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)
    return job.model_copy(update={"bundles": True})


JOB = deployed()
IDENTITY = JOB.fingerprint, JOB.deployment


def enrolment(number: int) -> bytes:
    return bytes([number + 1]) * 16


def sent(number: int, epoch: int, reports: int = 1) -> list[bytes]:
    words = Words(np.zeros((reports, JOB.word_form.width), JOB.word_form.dtype))
    batch = Batch(*IDENTITY, bytes([epoch, number]) * 8, enrolment(number), epoch, words)
    said = Punctuation(*IDENTITY, enrolment(number), epoch, 1, reports, reports)
    return [encode_batch(batch), encode_punctuation(said)]


@dataclass
class LogWriter:
    """Kafka, in memory; `fails` says of each record whether it is away, having taken it or not."""

    log: MemoryLog = field(default_factory=MemoryLog)
    fails: Callable[[int], str] = lambda number: ""
    written: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)

    async def start(self) -> None:
        pass

    async def write(
        self, topic: str, partition: int, value: bytes, key: bytes | None = None
    ) -> int | None:
        failure = self.fails(self.written)
        self.written += 1
        self.places.append((partition, claimed_epoch(records_in(value)[0]) or 0))
        if failure != "lost":
            self.log.append(Append(Role(topic.removeprefix(f"{JOB.name}.")), partition, value))
        if failure:
            raise WriteError(failure)
        return None

    async def stop(self) -> None:
        pass


@contextmanager
def running(writer: LogWriter, **settings: Any) -> Iterator[tuple[Relay, str]]:
    """A relay in a thread of its own, and where it answers."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def make() -> tuple[Relay, str]:
        relay = Relay(replace(RelaySettings(port=0), **settings), writer, lambda told: None)
        address = await relay.start()
        relay.take(RelayableJobs((JOB,), ()))
        return relay, address

    try:
        relay, address = call(make())
        try:
            yield relay, address
        finally:
            call(relay.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class NoDriver:
    """Carries out what is no relay's."""

    def __init__(self) -> None:
        self.done: list[Action] = []

    def carry_out(self, action: Action) -> object:
        self.done.append(action)
        return None


def gateway(url: str, job: DeployedJob = JOB, **more: Any) -> RelayTransport:
    return RelayTransport(job, url, NoDriver(), sleep=lambda seconds: None, **more)


def send(transport: RelayTransport, records: list[bytes], epoch: int) -> None:
    def steps() -> Steps[None]:
        for value in records:
            yield Append(Role.REPORTS, JOB.partition_of(epoch), value)
        yield Flush()

    transport.run(steps())


def send_two(transport: RelayTransport, number: int) -> None:
    for epoch in (1, 2):
        send(transport, sent(number, epoch), epoch)


def shuffled(log: MemoryLog) -> dict[int, tuple[bool, ...]]:
    """Who is in each window, by the shuffle stage; no record is refused."""
    for number in range(GATEWAYS):
        record = Registration(JOB.deployment, f"g{number}", enrolment(number), 1)
        log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))
    attempts = count(1)
    stage = ShuffleStage(
        JOB,
        identifiers=lambda: next(attempts).to_bytes(16, "big"),
        wall_clock=lambda: 5,
        broker_time=lambda: None,
        generator=np.random.default_rng(0),
    )
    worker = MemoryWorker(stage, log, MemoryDriver(log))
    for partition in range(2):
        worker.run(worker.assign(partition))
    worker.run(worker.drain())
    assert not log.values(Role.DEAD_LETTERS)
    manifests = map(decode_manifest, log.values(Role.MANIFESTS))
    return {each.epoch: tuple(each.producers) for each in manifests}


def raw(log: MemoryLog) -> list[bytes]:
    return [value for partition in range(2) for value in log.values(Role.REPORTS, partition)]


@pytest.mark.parametrize("failure", ["", "lost", "away, and it was written"])
def test_gateways_are_told_when_kafka_has_it_and_each_counts_once(failure: str) -> None:
    writer = LogWriter(fails=lambda number: failure if number in (0, 2) else "")
    with running(writer) as (_, url):
        threads = [
            threading.Thread(target=send_two, args=(gateway(url), number))
            for number in range(GATEWAYS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    held = raw(writer.log)
    records = {record for value in held for record in records_in(value)}
    assert records == {
        record for number in range(GATEWAYS) for epoch in (1, 2) for record in sent(number, epoch)
    }
    assert any(map(is_bundle, held))
    assert shuffled(writer.log) == {1: (True,) * GATEWAYS, 2: (True,) * GATEWAYS}


def test_a_relay_may_be_killed_and_another_take_its_place() -> None:
    writer = LogWriter()
    with running(writer) as (_, url):
        transport = gateway(url)
        send(transport, sent(0, 1), 1)
        port = int(url.rpartition(":")[2])
    # The connection is open still, as far as the gateway knows.
    with running(writer, port=port):
        send(transport, sent(0, 2), 2)
    assert {r for value in raw(writer.log) for r in records_in(value)} == {*sent(0, 1), *sent(0, 2)}


def test_other_actions_are_kafkas_and_flush_is_both() -> None:
    writer, driver = LogWriter(), NoDriver()
    with running(writer) as (_, url):
        transport = RelayTransport(JOB, url, driver)
        written: list[int] = []
        registration = Append(Role.PRODUCERS, 0, b"registration")

        def steps() -> Steps[None]:
            yield registration
            yield Append(Role.REPORTS, 1, sent(0, 1)[0])
            written.append(writer.written)
            yield Flush()
            written.append(writer.written)

        transport.run(steps())
    assert written == [0, 1]
    assert driver.done == [registration, Flush()]
    # What came alone is as if it had been sent by itself.
    assert raw(writer.log) == [sent(0, 1)[0]]


def test_what_is_refused_is_said_once_and_not_sent_again() -> None:
    writer = LogWriter()
    other = JOB.model_copy(update={"deployment": bytes(16)})
    cases = [
        (JOB, {}, "401: this relay takes records with a token"),
        (JOB, {"token": "another token, of more"}, "401: this relay takes records with a token"),
        (other.model_copy(update={"name": "elsewhere"}), {"token": TOKEN.decode()}, "no such job"),
    ]
    with running(writer, tokens=digests_of([b"x" * 16, TOKEN])) as (_, url):
        for job, more, problem in cases:
            with pytest.raises(RelayRefusalError, match=problem):
                send(gateway(url, job, **more), sent(0, 1), 1)
        known = gateway(url, token=TOKEN.decode())
        for records, problem in (
            ([b"dpst"], "400: a record is not of the form"),
            ([b"a bundle's", b"records"], "400: a record is not of the form"),
            (sent(0, 9), "400: a record is of an epoch that this job does not have"),
        ):
            with pytest.raises(RelayRefusalError, match=problem):
                send(known, records, 1)
        send(known, sent(0, 1), 1)
    assert writer.written == 1
    for url in ("relay.example.org:8400", "ftp://relay", "https://relay/path", "http://a:b", ""):
        with pytest.raises(RelayRefusalError, match="is no address of a relay"):
            gateway(url)
    with pytest.raises(RelayRefusalError, match="wait for 100 producers or more"):
        gateway("http://relay", JOB.model_copy(update={"bundles": False}))


def told(relay: Relay) -> dict[str, float]:
    """The metrics of a relay, without those of its process."""
    text = generate_latest(registry_of(relay.snapshot)).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("dpstream_rel")]
    return {name.removeprefix("dpstream_relay_"): float(value) for name, _, value in lines}


def test_metrics_count_requests_by_job_and_reason_and_name_no_gateway() -> None:
    writer = LogWriter(fails=lambda number: "away" if number == 1 else "")
    with running(writer, tokens=digests_of([TOKEN])) as (relay, url):
        known = gateway(url, token=TOKEN.decode())
        for number, epoch in ((0, 1), (1, 1), (2, 2)):
            send(known, sent(number, epoch), epoch)
        strangers = (
            gateway(url, token="another token, of more"),
            gateway(url, JOB.model_copy(update={"name": "elsewhere"}), token=TOKEN.decode()),
        )
        for stranger in strangers:
            with pytest.raises(RelayRefusalError):
                send(stranger, sent(0, 1), 1)
        for epoch in (9, 10):
            with pytest.raises(RelayRefusalError):
                send(known, sent(0, epoch), 1)
        job = 'dpstream_job="relayed"'
        counts = {
            f"received_requests_total{{{job}}}": 6,
            f"acknowledged_requests_total{{{job}}}": 3,
            f'refused_requests_total{{{job},reason="unavailable"}}': 1,
            f'refused_requests_total{{{job},reason="epoch"}}': 2,
            'refused_requests_total{dpstream_job="",reason="token"}': 1,
            'refused_requests_total{dpstream_job="",reason="unknown-job"}': 1,
        }
        gauges = {"ready": 1, "broker_reachable": 1, "waiting_requests": 0}
        written = {f"records_total{{{job}}}": 8, f"bundles_total{{{job}}}": 4}
        found = told(relay)
        # Of whom was refused a connection may be gone.
        assert 1 <= found.pop("connections") <= 3
        assert found == {**gauges, **counts, **written}
        assert relay.readiness().good
        assert relay.liveness().good
        # What hides how many messages there are hides what they are in, too.
        parameters = {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]}
        shuffle = {"minimum": 100, "producers": GATEWAYS}
        hidden = deployed(
            name="hidden", protocol="fragments", parameters=parameters, shuffle=shuffle
        )
        relay.take(RelayableJobs((JOB, hidden), ()))
        names = {name for name in told(relay) if "hidden" in name}
        assert names == {
            f'{which}_requests_total{{dpstream_job="hidden"}}'
            for which in ("received", "acknowledged")
        }
        relay.service.stopping = True
        assert told(relay)["ready"] == 0
        assert relay.readiness() == Health(False, "takes no records at present")
        relay.service.stopping = False
        relay._pulse._ticked -= 11
        assert relay.liveness() == Health(False, "the event loop does not tick")
        assert told(relay)["ready"] == 0


def test_of_a_body_all_records_are_taken_or_none() -> None:
    good = sent(0, 1)
    found = taken(JOB, Role.REPORTS, encode_bundle(Bundle(*IDENTITY, (*good, *sent(1, 2)))))
    assert found == {
        Place(JOB.topic(Role.REPORTS), 1): good,
        Place(JOB.topic(Role.REPORTS), 0): sent(1, 2),
    }
    said = encode_punctuation(Punctuation(JOB.fingerprint, bytes(16), enrolment(0), 1, 1, 1, 1))
    cases = [(said, Reason.DEPLOYMENT), (b"?", Reason.UNREADABLE)]
    nested = encode_bundle(Bundle(*IDENTITY, tuple(good)))
    for bad, reason in [*cases, (nested, Reason.UNREADABLE)]:
        refused = taken(JOB, Role.REPORTS, encode_bundle(Bundle(*IDENTITY, (good[0], bad))))
        assert isinstance(refused, Refusal)
        assert refused.reason is reason


def test_of_epochs_in_lanes_each_lane_goes_to_its_partition_and_the_first_one_last(
    tmp_path: Path,
) -> None:
    """A producer's own flushes keep the order, since the relay answers when Kafka has it."""
    shuffle = {"minimum": 1, "grace": "1h", "producers": 1}
    job = deployed(topics={"partitions": 3, "lanes": 2}, shuffle=shuffle)
    writer, registered = LogWriter(), MemoryDriver(MemoryLog())
    with running(writer) as (relay, url):
        relay.take(RelayableJobs((job,), ()))
        transport = RelayTransport(job, url, registered)
        with Producer(job, tmp_path, name="gateway", transport=transport) as producer:
            producer.enrol([f"user {number}" for number in range(40)])
            for epoch in (1, 2):
                producer.report(epoch, {f"user {number}": number % 2 for number in range(40)})
                producer.close(epoch)
        transport.close()
        other = gateway(url)
        for path in ("reports", "reports/0", "reports/3", "reports/1/2", "reports-2/1", ""):
            status, why, _ = other._post(f"/v1/jobs/{job.name}/{path}", sent(0, 1)[0])
            assert (status, why) == (404, "there is nothing here: POST /v1/jobs/JOB/reports"), path
        other.close()
    wrote = [(job.part_in(epoch, place), epoch) for place, epoch in writer.places]
    assert wrote == [(2, 1), (1, 1), (2, 2), (1, 2)]
    for value in registered.log.values(Role.PRODUCERS):
        writer.log.append(Append(Role.PRODUCERS, 0, value))
    stage = shuffling_stage(
        job,
        identifiers=lambda: bytes(16),
        wall_clock=lambda: 5,
        broker_time=lambda: None,
        generator=np.random.default_rng(0),
    )
    worker = MemoryWorker(stage, writer.log, MemoryDriver(writer.log))
    for partition in range(3):
        worker.run(worker.assign(partition))
    # In partition 2 lie lane 2 of epoch 1 and lane 1 of epoch 2.
    for _ in range(3):
        worker.run(worker.drain())
    assert not writer.log.values(Role.DEAD_LETTERS)
    heads = map(read_head, writer.log.values(Role.MANIFESTS))
    parts = sorted((each.epoch, each.instance) for each in heads)
    assert parts == [(1, 1), (1, 2), (2, 1), (2, 2)]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([Place("a", 0), Place("a", 1), Place("b", 0)]),
            st.lists(st.integers(1, 40_000).map(bytes), min_size=1, max_size=4),
            min_size=1,
        ),
        max_size=12,
    )
)
def test_what_one_request_has_for_a_place_is_in_one_record(
    requests: list[dict[Place, list[bytes]]],
) -> None:
    bundler, ready, expected = Bundler(JOB), [], []
    for request in requests:
        sending, full = bundler.add(request)
        assert sending.left == len(request)
        ready += full
        expected += [(place, sending, records) for place, records in request.items()]
    ready += bundler.due()
    assert not bundler.held_bytes
    assert not bundler.due()
    for place, sending, records in expected:
        (one,) = [each for each in ready if each.place == place and sending in each.sendings]
        held = records_in(one.value)
        starts = range(len(held) - len(records) + 1)
        assert any(list(held[at : at + len(records)]) == records for at in starts)
        assert len(one.sendings) == 1 or len(one.value) <= PAYLOAD_TARGET + 100
    assert sum(each.records for each in ready) == sum(len(records) for *_, records in expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40_000)), max_size=12))
def test_what_a_relay_writes_depends_on_sizes_alone(requests: list[tuple[int, int]]) -> None:
    shapes = []
    for content in (b"\0", b"\xff"):
        bundler, ready = Bundler(JOB), []
        for partition, size in requests:
            ready += bundler.add({Place("a", partition): [content * size]})[1]
        ready += bundler.due()
        shapes.append([(each.place, len(each.value), each.records) for each in ready])
    assert shapes[0] == shapes[1]
