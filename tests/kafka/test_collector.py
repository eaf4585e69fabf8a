"""Test collectors on a real broker, also behind nginx: acknowledged reports are in the log."""

import http.client
import secrets
import select
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.state import collector_key_file
from dpstream.topics.envelopes import CONTENT_TYPE
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.loose_batches import (
    decode_enrollments,
    decode_loose_batch,
    decode_watermark,
    horizon_tag,
    report_tag,
    subject_of_device,
)
from dpstream.topics.names import Role
from tests.kafka.conftest import TIMEOUT
from tests.support.certificates import write_certificate
from tests.support.device_jobs import body, envelope
from tests.support.new_jobs import new_job
from tests.support.proxy import INSTALLED, proxy

Start = Callable[..., "subprocess.Popen[str]"]
HEADERS = {"Content-Type": CONTENT_TYPE}


def deployed(servers: str, name: str, start: datetime, length: str, late: str) -> DeployedJob:
    job = new_job(
        name,
        "future_rand",
        {"epsilon": 1, "max_changes": 2},
        epochs={"count": 1024, "start": start.isoformat(), "length": length},
        shuffle={"grace": "1h"},
        devices={"late": late},
        topics={"partitions": 2},
    )
    with Cluster(Connection((servers,))) as cluster:
        now = int(time.time() * 1000)
        return deploy(cluster, job, deployment=secrets.token_bytes(16), now=now)


def collector(start: Start, job: str, *options: str) -> tuple["subprocess.Popen[str]", int]:
    process = start("collect", "--job", job, "--bind", "127.0.0.1:0", *options)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], TIMEOUT)[0], "the collector prints nothing"
    return process, int(process.stdout.readline().rpartition(":")[2])


def post(port: int, job: str, data: bytes) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("POST", f"/v1/jobs/{job}/reports", data, HEADERS)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def post_until_accepted(port: int, job: str, data: bytes) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (status := post(port, job, data)) != 202:
        assert status in (503, None)
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def servers(bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    return bootstrap_servers


@pytest.mark.verify
def test_acknowledged_reports_are_in_the_log(servers: str, job_name: str, start: Start) -> None:
    job = deployed(servers, job_name, datetime.now(UTC), "1d", "10min")
    secret = collector_key_file(job_name).read_bytes()
    (killed, first), (other, second) = (collector(start, job_name) for _ in range(2))
    post_until_accepted(first, job_name, body(job))
    post_until_accepted(second, job_name, body(job))
    acknowledged = []
    ports = [first, second]
    for number in range(300):
        device = secrets.token_bytes(16)
        data = body(job, 1, [envelope(job, 1, [number % 2], device)])
        if number == 150:
            killed.kill()
            killed.wait(TIMEOUT)
        # Every third report goes to both collectors, as from a device that received no response.
        answers = [post(port, job_name, data) for port in ports[number % 2 :][: 1 + number % 3]]
        if 202 in answers:
            acknowledged.append(device)
    assert len(acknowledged) >= 200
    other.terminate()
    assert other.wait(TIMEOUT) == 0
    with Cluster(Connection((servers,))) as cluster:
        tags = {
            row[:8].tobytes()
            for record in cluster.read(job.topic(Role.REPORTS), job.topics.partition_of(1))
            if kind_of(record.value) is RecordType.LOOSE_BATCH
            for row in decode_loose_batch(record.value).rows
        }
        enrolled = {
            tag.tobytes()
            for record in cluster.read(job.topic(Role.DEVICES))
            for tag in decode_enrollments(record.value).tags
        }
    for device in acknowledged:
        subject = subject_of_device(device)
        assert report_tag(secret, job.deployment, 1, subject) in tags
        assert horizon_tag(secret, job.deployment, 0, subject) in enrolled


@pytest.mark.verify
def test_collector_serves_tls_only(
    servers: str, job_name: str, start: Start, tmp_path: Path
) -> None:
    job = deployed(servers, job_name, datetime.now(UTC), "1d", "10min")
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    _, port = collector(start, job_name, "--tls-cert", str(certificate), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    deadline = time.monotonic() + TIMEOUT
    status = 0
    while status != 202:
        assert time.monotonic() < deadline
        assert status in (0, 503)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)
        connection.request("POST", f"/v1/jobs/{job_name}/reports", body(job), HEADERS)
        status = connection.getresponse().status
        connection.close()
    assert post(port, job_name, body(job)) is None


@pytest.mark.verify
def test_resumed_collector_does_not_accept_late_reports(
    servers: str, job_name: str, start: Start
) -> None:
    """A collector is suspended with pending requests until another one closes their epoch."""
    job = deployed(servers, job_name, datetime.now(UTC), "12s", "1s")
    (asleep, first), (_, second) = (collector(start, job_name) for _ in range(2))
    times = times_of(job)
    assert times is not None
    now = int(time.time() * 1000)
    epoch = times.epoch_of(now) + 1
    begins = times.start(epoch)
    ends = times.start(epoch + 1)
    assert begins is not None
    assert ends is not None
    post_until_accepted(first, job_name, body(job, epoch - 1))
    time.sleep(max(0.0, (begins - time.time() * 1000) / 1000) + 0.2)
    post_until_accepted(first, job_name, body(job, epoch))
    post_until_accepted(second, job_name, body(job, epoch))
    devices = [secrets.token_bytes(16) for _ in range(400)]
    statuses: dict[bytes, int | None] = {}

    def send(each: bytes) -> None:
        statuses[each] = post(first, job_name, body(job, epoch, [envelope(job, epoch, [1], each)]))

    threads = [threading.Thread(target=send, args=(each,)) for each in devices]
    for number, thread in enumerate(threads):
        thread.start()
        if number == len(threads) // 2:
            # Suspended midway: some reports are written, some acknowledged, some only received.
            asleep.send_signal(signal.SIGSTOP)
    with Cluster(Connection((servers,))) as cluster:

        def records() -> list[LogRecord]:
            return list(cluster.read(job.topic(Role.REPORTS), job.topics.partition_of(epoch)))

        deadline = time.monotonic() + TIMEOUT
        while not (marks := [each for each in records() if marks_end(each, epoch)]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        asleep.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()
        cut = marks[0].offset
        secret = collector_key_file(job_name).read_bytes()
        below = {
            row[:8].tobytes()
            for each in records()
            if each.offset < cut and kind_of(each.value) is RecordType.LOOSE_BATCH
            for row in decode_loose_batch(each.value).rows
        }
    taken = [each for each, status in statuses.items() if status == 202]
    late = [each for each, status in statuses.items() if status == 409]
    assert taken
    assert late
    for each in taken:
        assert report_tag(secret, job.deployment, epoch, subject_of_device(each)) in below


def marks_end(record: LogRecord, epoch: int) -> bool:
    return (
        kind_of(record.value) is RecordType.WATERMARK
        and decode_watermark(record.value).epoch == epoch
    )


DEVICES = 600
KILLED_AFTER = 200


@pytest.mark.verify
@pytest.mark.skipif(INSTALLED is None, reason="nginx is not installed")
def test_killed_collector_loses_no_report(
    servers: str, job_name: str, start: Start, tmp_path: Path
) -> None:
    job = deployed(servers, job_name, datetime.now(UTC), "1d", "10min")
    secret = collector_key_file(job_name).read_bytes()
    options = ("--proxy", "127.0.0.0/8")
    (killed, first), (_, second) = (collector(start, job_name, *options) for _ in range(2))
    for port in (first, second):
        post_until_accepted(port, job_name, body(job))
    devices = [secrets.token_bytes(16) for _ in range(DEVICES)]
    bodies = [body(job, 1, [envelope(job, 1, [n % 2], id_)]) for n, id_ in enumerate(devices)]
    statuses: list[int | None] = [None] * DEVICES
    at_once = 4

    def send(begin: int, port: int) -> None:
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        for number in range(begin, DEVICES, at_once):
            kept.request("POST", f"/v1/jobs/{job_name}/reports", bodies[number], HEADERS)
            answer = kept.getresponse()
            answer.read()
            statuses[number] = answer.status
        kept.close()

    with proxy(tmp_path / "nginx", [first, second]) as port:
        threads = [threading.Thread(target=send, args=(begin, port)) for begin in range(at_once)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + TIMEOUT
        while sum(status is not None for status in statuses) < KILLED_AFTER:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        killed.kill()
        killed.wait(TIMEOUT)
        for thread in threads:
            thread.join()
        # The proxy itself forwarded each report to the surviving collector.
        assert set(statuses) == {202}
        assert post(port, job_name, b"x") == 400
    with Cluster(Connection((servers,))) as cluster:
        tags = {
            row[:8].tobytes()
            for record in cluster.read(job.topic(Role.REPORTS), job.topics.partition_of(1))
            if kind_of(record.value) is RecordType.LOOSE_BATCH
            for row in decode_loose_batch(record.value).rows
        }
    assert {
        report_tag(secret, job.deployment, 1, subject_of_device(device)) for device in devices
    } <= tags
    # Two more reports were sent to check that collectors accept reports.
    assert len(tags) == DEVICES + 2
