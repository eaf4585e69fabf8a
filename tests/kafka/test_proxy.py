"""Test two collectors behind nginx on a real broker, one of which is killed under load."""

import http.client
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.state import collector_key_file
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.loose_batches import decode_loose_batch, report_tag, subject_of_device
from dpstream.topics.names import Role
from tests.kafka.conftest import TIMEOUT
from tests.kafka.test_collector import (
    HEADERS,
    Start,
    collector,
    deployed,
    post,
    post_until_accepted,
)
from tests.support.device_jobs import body, envelope
from tests.support.proxy import INSTALLED, proxy

DEVICES = 600
KILLED_AFTER = 200


@pytest.fixture
def servers(bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    return bootstrap_servers


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
