"""Cost of many jobs with idle workers on one machine, and throughput of busy jobs.

``python -m tests.benchmarks.many_jobs [JOBS [BUSY]] [--rounds N]``

Uses the local broker of the state folder (``DPSTREAM_HOME``, preferably a new folder), and idle
jobs that an earlier run deployed there. Prints as JSON: the time from the start of three
supervisors until every job is supervised; the memory (proportional set size) and processor time of
their processes and of the broker; the duration of ``dpstream status`` for all jobs; the time to
publish an epoch that wakes a job; and the reports per second of BUSY busy jobs, and of a single job
with the same number of reports, with the processor time by component.

The first measurement of the single job warms up the broker's JIT compiler and is dropped. Then the
single job and the busy jobs alternate for N rounds, because machine speed varies. The result is the
median ratio over the rounds. All workers of a pass are running when it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.operations.processes import Process, dpstream_command, end_all
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.state import kafka_folder
from dpstream.topics.names import Role
from tests.benchmarks.end_to_end import STAGES, BenchmarkError, local_broker
from tests.benchmarks.measuring import MEGABYTE, available_cores, busy_seconds
from tests.benchmarks.one_core import DrawnReports, job_values
from tests.benchmarks.producing import send

IDLE_TIMEOUT = 60.0
"""Timeout in seconds, longer than waking all busy jobs and drawing their reports."""
IDLE_SECONDS = 30.0
WAKINGS = 3
REPORTS = 1_000_000
"""Number of reports per epoch of a busy job."""
EPOCHS = 12
"""Number of epochs per round of each busy job; the single job has the same total."""
_SMALL_REPORTS = 1000
"""Number of reports of an epoch that wakes a job: two before each pass, and one apart."""
_TIMEOUT = 300.0


class Supervisors:
    """The supervisor of each stage, with all its processes."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._ports = {stage: free_port() for stage in STAGES}
        self.processes = []
        for stage, port in self._ports.items():
            command = ["run", stage, "--name", "bench", "--idle-timeout", str(IDLE_TIMEOUT)]
            command += ["--metrics", str(port), *connection.arguments()]
            log = folder / f"{stage}.log"
            log.touch()
            self.processes.append(Process(dpstream_command(*command), log=log))

    def wait_for(self, jobs: int) -> None:
        _wait(lambda: all(self._jobs(port) == jobs for port in self._ports.values()))

    def tree(self) -> list[psutil.Process]:
        own = [psutil.Process(process.pid) for process in self.processes]
        return [*own, *(child for each in own for child in each.children(recursive=True))]

    def processor(self) -> dict[str, float]:
        """Processor seconds per stage: of the supervisor and all processes it has started."""
        used = dict.fromkeys(self._ports, 0.0)
        for stage, process in zip(self._ports, self.processes, strict=True):
            own = psutil.Process(process.pid)
            for each in (own, *own.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    used[stage] += sum(each.cpu_times()[:4])
        return used

    def _jobs(self, port: int) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
                return sum(map(int, re.findall(r"\d+", answer.read().decode())))
        except (URLError, OSError):
            return -1


class Sender:
    """Send previously drawn reports of a job, in full and in small epochs."""

    def __init__(self, cluster: Cluster, name: str, epochs: int, passes: int) -> None:
        job = make_job(job_values(name, epochs + 2 * passes + 1))
        now, new = int(time.time() * 1000), secrets.token_bytes(16)
        self.job: DeployedJob = deploy(cluster, job, deployment=new, now=now)
        self._transport = KafkaTransport(cluster, name)
        self._source = DrawnReports(self.job)
        self._transport.run(send(Role.PRODUCERS, 0, [self._source.registration()]))
        self._estimates = EstimateReader(cluster, self.job)
        self._drawn: deque[tuple[int, list[bytes]]] = deque()
        self._epochs = self._sent = self._published = 0

    def draw(self, epochs: int, reports: int) -> None:
        for _ in range(epochs):
            self._epochs += 1
            self._drawn.append((self._epochs, self._source.epoch(self._epochs, reports)))

    def send(self) -> None:
        epoch, records = self._drawn.popleft()
        self._transport.run(send(Role.REPORTS, self.job.topics.partition_of(epoch), records))
        self._sent += 1

    def published(self) -> bool:
        self._published += sum(1 for _ in self._estimates.read())
        return self._published >= self._sent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.many_jobs")
    parser.add_argument("jobs", type=int, nargs="?", default=200)
    parser.add_argument("busy", type=int, nargs="?", default=20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with (
        local_broker(lambda text: print(text, file=sys.stderr)) as connection,
        Cluster(connection) as cluster,
        TemporaryDirectory() as folder,
    ):
        _deploy_idle(cluster, given.jobs)
        for figures in _measure(connection, cluster, Path(folder), given.busy, given.rounds):
            print(json.dumps(figures), flush=True)


def _measure(
    connection: Connection, cluster: Cluster, folder: Path, busy: int, rounds: int
) -> Iterator[dict[str, object]]:
    names = [f"busy-{secrets.token_hex(3)}-{number}" for number in range(busy + 1)]
    alone = Sender(cluster, names[0], EPOCHS * busy * (rounds + 1), passes=rounds + 1)
    together = [Sender(cluster, name, EPOCHS * rounds, passes=rounds) for name in names[1:]]
    jobs = len(read_jobs(cluster).jobs)
    with _supervisors(connection, folder) as supervisors:
        begun = time.monotonic()
        supervisors.wait_for(jobs)
        yield {"jobs": jobs, "seconds from start to all assigned": _since(begun)}
        yield _idle(supervisors)
        yield {"seconds of status": [_status(connection) for _ in range(3)]}
        yield {"seconds from a record that wakes a job to its estimate": _wake(together[:WAKINGS])}
        ratios = []
        for number in range(rounds + 1):
            # Woken workers stay up for a while; the single job's workers must have become idle.
            _settle(supervisors)
            single, figures = _pass(supervisors, [alone], EPOCHS * busy)
            yield {"reports per second, alone": single, **figures}
            if number:
                rate, figures = _pass(supervisors, together, EPOCHS)
                ratios.append(rate / single)
                yield {"reports per second, together": rate, **figures}
        yield {"ratio": round(median(ratios), 3), "all": [round(each, 3) for each in ratios]}
    for name in names:
        undeploy(cluster, name, delete_topics=True)


def _deploy_idle(cluster: Cluster, count: int) -> None:
    known = read_jobs(cluster).jobs
    for name in (f"idle-{number}" for number in range(count)):
        if name not in known:
            now, new = int(time.time() * 1000), secrets.token_bytes(16)
            deploy(cluster, make_job(job_values(name, 4096)), deployment=new, now=now)


@contextmanager
def _supervisors(connection: Connection, folder: Path) -> Iterator[Supervisors]:
    supervisors = Supervisors(connection, folder)
    try:
        yield supervisors
    finally:
        end_all(supervisors.processes, timeout=30.0)


def _idle(supervisors: Supervisors) -> dict[str, object]:
    # Registration of later producers wakes some workers.
    _settle(supervisors)
    ours, broker = supervisors.tree(), [_broker()]
    before, begun = (_processor(ours), _processor(broker)), time.monotonic()
    time.sleep(IDLE_SECONDS)
    took = time.monotonic() - begun
    return {
        "processes": len(ours),
        "megabytes": _memory(ours),
        "cores": round((_processor(ours) - before[0]) / took, 3),
        "megabytes of the broker": _memory(broker),
        "cores of the broker": round((_processor(broker) - before[1]) / took, 3),
    }


def _settle(supervisors: Supervisors) -> None:
    settled = 0
    while settled < 10:
        settled = settled + 1 if len(supervisors.tree()) == 2 * len(STAGES) else 0
        time.sleep(1.0)


def _status(connection: Connection) -> float:
    begun = time.monotonic()
    command = dpstream_command("status", *connection.arguments())
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env=_environment())
    return _since(begun)


def _wake(senders: Sequence[Sender]) -> dict[str, object]:
    seconds = []
    for sender in senders:
        sender.draw(1, _SMALL_REPORTS)
        begun = time.monotonic()
        sender.send()
        _wait(sender.published)
        seconds.append(_since(begun))
    return {"median": median(seconds), "all": seconds}


def _pass(
    supervisors: Supervisors, senders: Sequence[Sender], epochs: int
) -> tuple[float, dict[str, object]]:
    """Return the reports per second, memory and processor time of jobs that are all awake."""
    for sender in senders:
        sender.draw(2, _SMALL_REPORTS)
        sender.draw(epochs, REPORTS)
    # The first epoch wakes all workers one at a time; at the second, all are working.
    for _ in range(2):
        for sender in senders:
            sender.send()
        for sender in senders:
            _wait(sender.published)
    before, busy, begun = _used(supervisors), busy_seconds(), time.monotonic()
    for _ in range(epochs):
        for sender in senders:
            sender.send()
    sent = _since(begun)
    for sender in senders:
        _wait(sender.published)
    took = time.monotonic() - begun
    used = {name: round(now - before[name], 2) for name, now in _used(supervisors).items()}
    busy = busy_seconds() - busy
    figures = {
        "seconds": round(took, 2),
        "until all was sent": sent,
        "processor seconds": used,
        "of others": round(busy - sum(used.values()), 2),
        "idle": round(len(available_cores()) * took - busy, 2),
        "megabytes": _memory(supervisors.tree()),
    }
    return round(len(senders) * epochs * REPORTS / took), figures


def _used(supervisors: Supervisors) -> dict[str, float]:
    """Return the processor seconds so far of the stages, the broker, and this process."""
    sender = sum(psutil.Process().cpu_times()[:2])
    return {**supervisors.processor(), "broker": _processor([_broker()]), "sender": sender}


def _broker() -> psutil.Process:
    pid = LocalKafka(kafka_folder()).status().pid
    if pid is None:
        raise BenchmarkError("the local broker has exited")
    return psutil.Process(pid)


def _memory(processes: Sequence[psutil.Process]) -> int:
    shares = []
    for each in processes:
        # Some processes can have ended meanwhile.
        with suppress(psutil.NoSuchProcess):
            shares.append(each.memory_full_info().pss)
    return round(sum(shares) / MEGABYTE)


def _processor(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 2)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"timeout after {_TIMEOUT:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
