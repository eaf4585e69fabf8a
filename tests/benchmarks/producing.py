"""Producer process that waits for SIGUSR1 before it sends.

``python -m tests.benchmarks.producing KIND PARENT_WATCH JOB NAME SERVERS FOLDER NUMBER``

KIND is one of

* ``devices``: a real `Producer` with NUMBER devices closes every epoch of the job,
* ``drawn``: NUMBER reports per epoch, encoded in advance, are sent unchanged,
* ``held``: as ``drawn``, but all punctuation is delayed until a second SIGUSR1.

The process prints ``ready`` when it can start, ``begun SECONDS`` (monotonic clock) when it starts,
and ``held`` when only the punctuation is missing.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.parent_watch import follow
from dpstream.topics.names import Role
from tests.benchmarks.one_core import DrawnReports, changing_values

# Number of epochs whose values are made in advance and then repeated.
_EPOCHS_OF_VALUES = 16


def main() -> None:
    # Before any thread starts, so that no thread receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    kind, name_of_job, name, servers, folder, number = sys.argv[1:]
    follow()
    with Cluster(Connection((servers,))) as cluster:
        job = find_deployed(cluster, name_of_job)
        transport = KafkaTransport(cluster, job.name, print)
        if kind == "devices":
            _close_epochs(job, transport, name, Path(folder), int(number))
        else:
            _send_drawn(job, transport, int(number), hold=kind == "held")
        # The parent measures this process's memory and processor time before ending it.
        threading.Event().wait()


def _await_signal() -> None:
    signal.sigwait({signal.SIGUSR1})


def _begin() -> None:
    print("ready", flush=True)
    _await_signal()
    print(f"begun {time.monotonic()}", flush=True)


def _close_epochs(
    job: DeployedJob, transport: KafkaTransport, name: str, folder: Path, devices: int
) -> None:
    values: Sequence[NDArray[np.integer]] = list(changing_values(devices, _EPOCHS_OF_VALUES))
    if job.domain.slots is not None:
        rng = np.random.default_rng()
        values = [rng.integers(1, job.domain.size, (devices, 1)) for _ in range(4)]
    with Producer(job, folder, name=name, transport=transport) as producer:
        producer.enroll([f"{name}-{device}" for device in range(devices)])
        _begin()
        for epoch in range(1, job.epochs.count + 1):
            producer.report_all(epoch, values[epoch % len(values)])
            producer.close(epoch)


def _send_drawn(job: DeployedJob, transport: KafkaTransport, reports: int, *, hold: bool) -> None:
    source = DrawnReports(job)
    transport.run(send(Role.PRODUCERS, 0, [source.registration()]))
    drawn = {epoch: source.epoch(epoch, reports) for epoch in range(1, job.epochs.count + 1)}
    _begin()
    if not hold:
        _send(job, transport, drawn.items())
        return
    _send(job, transport, ((epoch, records[:-1]) for epoch, records in drawn.items()))
    print("held", flush=True)
    _await_signal()
    _send(job, transport, ((epoch, records[-1:]) for epoch, records in drawn.items()))


def _send(
    job: DeployedJob, transport: KafkaTransport, epochs: Iterable[tuple[int, Sequence[bytes]]]
) -> None:
    for epoch, records in epochs:
        transport.run(send(Role.REPORTS, job.topics.partition_of(epoch), records))


def send(role: Role, partition: int, records: Sequence[bytes]) -> Steps[None]:
    for record in records:
        yield Append(role, partition, record)
    yield Flush()


if __name__ == "__main__":
    main()
