"""Throughput of a collector: ``python -m tests.benchmarks.collector`` takes about a minute.

The collector is pinned to one core; a load generator and the local broker run on the other core. A
report counts when Kafka has acknowledged it. The rate is measured with 256 persistent connections,
each with one request at a time. Latencies are measured at half that rate, with requests sent on
schedule even if earlier answers are late. Prints JSON.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from tests.benchmarks.end_to_end import local_broker
from tests.benchmarks.measuring import available_cores, processor_seconds
from tests.support.collector_server import report
from tests.support.device_jobs import body, envelope
from tests.support.new_jobs import new_job

CONNECTIONS = 256
SECONDS = 4.0
BODIES = 500
"""Number of distinct bodies of each size, from distinct devices."""
LOADS = {"single requests": 1, "requests of 100": 100}
_ACCEPTED = b"HTTP/1.1 202"
_START_SECONDS = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dpstream-bench-") as folder:
        os.environ["DPSTREAM_HOME"] = folder
        with local_broker(lambda text: None) as connection:
            print(json.dumps(measure(connection), indent=2))


def measure(connection: Connection) -> dict[str, Any]:
    now = datetime.now(UTC)
    job = new_job(
        "bench-devices",
        "future_rand",
        {"epsilon": 1, "max_changes": 2},
        epochs={"count": 16, "start": now.isoformat(), "length": "1d"},
        shuffle={"grace": "1h"},
        devices={},
    )
    with Cluster(connection) as cluster:
        deployed = deploy(
            cluster, job, deployment=secrets.token_bytes(16), now=int(now.timestamp() * 1000)
        )
    figures = {}
    with _collector(connection) as (port, pid):
        for name, size in LOADS.items():
            requests = [
                report(
                    body(deployed, 1, [envelope(deployed, enrolls=False) for _ in range(size)]),
                    job=deployed.name,
                )
                for _ in range(BODIES)
            ]
            fleet = _Fleet(port, requests)
            fleet.ready(deployed.name)
            fleet.run(1.0)
            before = processor_seconds(pid)
            answered, seconds, _ = fleet.run(SECONDS)
            busy = processor_seconds(pid) - before
            rate = answered / seconds
            _, _, latencies = fleet.run(SECONDS, rate / 2)
            fleet.close()
            middle, last = np.percentile(latencies, [50, 99])
            figures[name] = {
                "reports_per_second": round(rate * size),
                "reports_per_processor_second": round(answered * size / busy),
                "collector_busy": round(busy / seconds, 2),
                "milliseconds_at_half": {
                    "median": round(1000 * middle, 1),
                    "99 %": round(1000 * last, 1),
                },
                "bytes_of_a_request": len(requests[0]),
            }
    return figures


@contextmanager
def _collector(connection: Connection) -> Iterator[tuple[int, int]]:
    """Run a collector on the first core, and the rest of this process on the other cores."""
    cores = available_cores()
    command = [sys.executable, "-m", "dpstream.pipeline.cli", "collect", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *connection.arguments()], stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    ) as process:
        try:
            if len(cores) > 1:
                os.sched_setaffinity(process.pid, cores[:1])
                os.sched_setaffinity(0, cores[1:])
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            yield port, process.pid
        finally:
            os.sched_setaffinity(0, cores)
            process.terminate()


class _Fleet:
    """Connections, each with one request at a time."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._requests = requests
        self._next = 0
        self._selector = selectors.DefaultSelector()
        self._idle: list[socket.socket] = []
        self._sent: dict[socket.socket, float] = {}
        for _ in range(CONNECTIONS):
            made = socket.create_connection(("127.0.0.1", port))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(made, selectors.EVENT_READ)
            self._idle.append(made)

    def ready(self, job: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the collector does not accept reports of {job}")
            made = self._idle[-1]
            made.sendall(self._requests[0])
            if made.recv(4096).startswith(_ACCEPTED):
                return
            time.sleep(0.1)

    def run(self, seconds: float, rate: float | None = None) -> tuple[int, float, list[float]]:
        """Send requests; return the number of answers, the total time, and all latencies (seconds).

        Args:
            rate: Requests per second; None sends the next request after each answer.
        """
        begun = now = time.perf_counter()
        latencies: list[float] = []
        sent = 0
        while self._sent or now - begun < seconds:
            if now - begun < seconds:
                due = len(self._idle) if rate is None else int((now - begun) * rate) - sent
                for _ in range(min(due, len(self._idle))):
                    sent += 1
                    self._send(now if rate is None else begun + sent / rate)
            pause = 0.05 if rate is None else min(0.05, 1 / rate)
            for key, _ in self._selector.select(pause):
                made = key.fileobj
                assert isinstance(made, socket.socket)
                answer = made.recv(4096)
                if not answer.startswith(_ACCEPTED):
                    raise RuntimeError(f"unexpected answer: {answer[:60]!r}")
                latencies.append(time.perf_counter() - self._sent.pop(made))
                self._idle.append(made)
            now = time.perf_counter()
        return len(latencies), now - begun, latencies

    def close(self) -> None:
        self._selector.close()
        for made in self._idle:
            made.close()

    def _send(self, due: float) -> None:
        made = self._idle.pop()
        self._sent[made] = due
        made.sendall(self._requests[self._next])
        self._next = (self._next + 1) % len(self._requests)


if __name__ == "__main__":
    main()
