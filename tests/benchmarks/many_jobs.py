"""What many jobs cost on one machine whose workers rest, and how fast they are when they do not.

``python -m tests.benchmarks.many_jobs [JOBS [BUSY]]``

On the local broker of the state folder (``DPSTREAM_HOME``, best a new one); idle jobs that an
earlier run has deployed there are used again. Prints figures in JSON: how long it takes from the
start of three supervisors until every job is answered for; memory (proportional set size) and
processor time of all that they have started, and of the broker; ``dpstream status`` of all jobs;
how long it takes to publish an epoch that wakes a job; and the reports a second of so many busy
jobs, and of one alone that is sent as many.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster, KafkaTransport
from pipeline.kafka.connection import Connection
from pipeline.kafka.local_kafka import LocalKafka
from pipeline.kafka.local_kafka.broker import free_port
from pipeline.operations.deployments import deploy, read_jobs, undeploy
from pipeline.operations.processes import Process, dpstream_command, end_all
from pipeline.results.follow import EstimateReader
from pipeline.state import kafka_folder
from tests.benchmarks.end_to_end import STAGES, BenchmarkError, local_broker
from tests.benchmarks.measuring import MEGABYTE
from tests.benchmarks.one_core import DrawnReports, job_values
from tests.benchmarks.producing import send
from topics.names import Role

REST_SECONDS = 30.0
IDLE_SECONDS = 30.0
WAKINGS = 3
REPORTS = 1_000_000
"""Of an epoch of a busy job."""
EPOCHS = 12
"""Of each of the busy jobs; the one that is alone has those of all of them."""
_PATIENCE = 300.0


class Supervisors:
    """One of each stage, and all that they start."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._ports = {stage: free_port() for stage in STAGES}
        self.processes = []
        for stage, port in self._ports.items():
            command = ["run", stage, "--name", "bench", "--rest-after", str(REST_SECONDS)]
            command += ["--metrics", str(port), *connection.arguments()]
            log = folder / f"{stage}.log"
            log.touch()
            self.processes.append(Process(dpstream_command(*command), log=log))

    def wait_for(self, jobs: int) -> None:
        """Wait until each of them answers for so many jobs."""
        _wait(lambda: all(self._jobs(port) == jobs for port in self._ports.values()))

    def tree(self) -> list[psutil.Process]:
        """All processes."""
        own = [psutil.Process(process.pid) for process in self.processes]
        return [*own, *(child for each in own for child in each.children(recursive=True))]

    def _jobs(self, port: int) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
                return sum(map(int, re.findall(r"\d+", answer.read().decode())))
        except (URLError, OSError):
            return -1


class Sender:
    """Sends reports of a job that were drawn before."""

    def __init__(self, cluster: Cluster, name: str, epochs: int) -> None:
        job = make_job(job_values(name, epochs + 1))
        now, new = int(time.time() * 1000), secrets.token_bytes(16)
        self.job: DeployedJob = deploy(cluster, job, deployment=new, now=now)
        self._transport = KafkaTransport(cluster, name)
        self._source = DrawnReports(self.job)
        self._transport.run(send(Role.PRODUCERS, 0, [self._source.registration()]))
        self._estimates = EstimateReader(cluster, self.job)
        self.published = 0

    def draw(self, epochs: Sequence[int], reports: int) -> dict[int, list[bytes]]:
        """The records of epochs."""
        return {epoch: self._source.epoch(epoch, reports) for epoch in epochs}

    def send(self, epoch: int, records: Sequence[bytes]) -> None:
        """Send an epoch."""
        self._transport.run(send(Role.REPORTS, self.job.partition_of(epoch), records))

    def has_published(self, epochs: int) -> bool:
        """Whether so many epochs are published by now."""
        self.published += sum(1 for _ in self._estimates.read())
        return self.published >= epochs


def main() -> None:
    """Measure, and print."""
    jobs, busy = (int(number) for number in (*sys.argv[1:], "200", "20")[:2])
    with (
        local_broker(lambda text: print(text, file=sys.stderr)) as connection,
        Cluster(connection) as cluster,
        TemporaryDirectory() as folder,
    ):
        _deploy_idle(cluster, jobs)
        for figures in _measure(connection, cluster, Path(folder), busy):
            print(json.dumps(figures), flush=True)


def _measure(
    connection: Connection, cluster: Cluster, folder: Path, busy: int
) -> Iterator[dict[str, object]]:
    names = [f"busy-{secrets.token_hex(3)}-{number}" for number in range(busy + 1)]
    alone, *together = [
        Sender(cluster, name, EPOCHS if number else EPOCHS * busy)
        for number, name in enumerate(names)
    ]
    jobs = len(read_jobs(cluster).jobs)
    with _supervisors(connection, folder) as supervisors:
        begun = time.monotonic()
        supervisors.wait_for(jobs)
        yield {"jobs": jobs, "seconds from start to all assigned": _since(begun)}
        yield _idle(supervisors)
        yield {"seconds of status": [_status(connection) for _ in range(3)]}
        yield {"seconds from a record that wakes a job to its estimate": _wake(together[:WAKINGS])}
        rates = {}
        for name, senders in (("alone", [alone]), ("together", together)):
            rates[name], memory = _pass(supervisors, senders, EPOCHS * busy // len(senders))
            yield {f"reports a second, {name}": rates[name], "megabytes": memory}
        yield {"ratio": round(rates["together"] / rates["alone"], 3)}
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
        end_all(supervisors.processes, patience=30.0)


def _idle(supervisors: Supervisors) -> dict[str, object]:
    """Memory, and what runs while nothing comes."""
    # Some are woken by the registration of those who report there later.
    settled = 0
    while settled < 10:
        settled = settled + 1 if len(supervisors.tree()) == 2 * len(STAGES) else 0
        time.sleep(1.0)
    pid = LocalKafka(kafka_folder()).status().pid
    if pid is None:
        raise BenchmarkError("the local broker has ended")
    ours, broker = supervisors.tree(), [psutil.Process(pid)]
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


def _status(connection: Connection) -> float:
    begun = time.monotonic()
    command = dpstream_command("status", *connection.arguments())
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env=_environment())
    return _since(begun)


def _wake(senders: Sequence[Sender]) -> dict[str, object]:
    seconds = []
    for sender in senders:
        records = sender.draw([1], 1000)[1]
        begun = time.monotonic()
        sender.send(1, records)
        _wait(lambda sender=sender: sender.has_published(1))  # type: ignore[misc]
        seconds.append(_since(begun))
    return {"median": median(seconds), "all": seconds}


def _pass(supervisors: Supervisors, senders: Sequence[Sender], epochs: int) -> tuple[float, int]:
    """Reports a second of jobs that are all awake, and memory then."""
    for sender in senders:
        if not sender.published:
            sender.send(1, sender.draw([1], 1000)[1])
    for sender in senders:
        _wait(lambda sender=sender: sender.has_published(1))  # type: ignore[misc]
    # Those that were woken earlier may rest again.
    drawn = [sender.draw(range(2, epochs + 2), REPORTS) for sender in senders]
    begun = time.monotonic()
    for epoch in range(2, epochs + 2):
        for sender, records in zip(senders, drawn, strict=True):
            sender.send(epoch, records[epoch])
    for sender in senders:
        _wait(lambda sender=sender: sender.has_published(epochs + 1))  # type: ignore[misc]
    took = time.monotonic() - begun
    return round(len(senders) * epochs * REPORTS / took), _memory(supervisors.tree())


def _memory(processes: Sequence[psutil.Process]) -> int:
    shares = []
    for each in processes:
        # Some may have ended meanwhile.
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
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"not within {_PATIENCE:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
