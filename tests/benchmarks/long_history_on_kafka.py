"""The same as `tests.benchmarks.long_history`, asked of the local broker by processes of their own.

``python -m tests.benchmarks.long_history_on_kafka FOLDER [--only WHAT ...]``

What the files of FOLDER hold is written to a job of the local broker of the state folder. Roles are
measured from the start of their process until they say that they have their partitions, and a page
until it has answered; so Python, its modules and the connections are part of the figures. Prints a
`Start` a line, in JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import psutil
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers.groups import group_name
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.operations.processes import dpstream_command
from dpstream.pipeline.stages.checkpoints import KEY, Checkpoint
from dpstream.topics.manifests import decode_manifest, encode_manifest
from dpstream.topics.names import Role
from tests.benchmarks.end_to_end import local_broker
from tests.benchmarks.long_history import JOB_FILE, KEPT, TopicFile
from tests.benchmarks.measuring import peak_megabytes, processor_seconds
from tests.support.histories import history_values

STAGES = ("shuffle", "aggregate", "publish")
VERBS = {
    "status": ["status", "long"],
    "estimates": ["estimates", "long"],
    "estimates --json": ["estimates", "long", "--json"],
    "producers": ["producers", "long"],
}
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Start:
    """What it takes a process to start.

    Attributes:
        what: role or verb.
        epochs: published.
        seconds: on the clock on the wall.
        processor_seconds: of the process.
        peak_megabytes: most resident memory of it.
    """

    what: str
    epochs: int
    seconds: float
    processor_seconds: float
    peak_megabytes: float


@contextmanager
def _deployed(cluster: Cluster, folder: Path) -> Iterator[int]:
    """The job of a folder; yields how many epochs it has published."""
    held = DeployedJob.from_bytes((folder / JOB_FILE).read_bytes())
    values = history_values(held.epochs.count, renew=held.epochs.renew)
    job = deploy(cluster, make_job(values), deployment=held.deployment, now=held.deployed_at)
    assert job.fingerprint == held.fingerprint, "the files are of another law: fill another folder"
    try:
        _finish_windows(cluster, job)
        digests: list[bytes] = []
        for role in KEPT:
            file = TopicFile(folder, role)
            position = 0
            while records := file.read(position, len(file.ends)):
                for record in records:
                    value = record.value
                    if role is Role.MANIFESTS:
                        manifest = replace(decode_manifest(value), first_offset=0, cut_offset=0)
                        value = encode_manifest(manifest)
                        digests.append(sha256(value).digest())
                    elif record.key == KEY:
                        held_one = Checkpoint.from_bytes(value)
                        digest = digests[held_one.place.manifest_offset]
                        place = replace(held_one.place, manifest_digest=digest)
                        rewritten = replace(held_one, place=place).append()
                        assert rewritten is not None
                        value = rewritten.value
                    cluster.producer.send(job.topic(role), value, key=record.key, partition=0)
                position += len(records)
                cluster.producer.flush()
        yield position
    finally:
        undeploy(cluster, job.name, delete_topics=True)


def _finish_windows(cluster: Cluster, job: DeployedJob) -> None:
    """Leave the shuffle stage nothing to write: all windows begin at offset 0, which is through."""
    consumer = KafkaConsumer(
        group_id=group_name(job, "shuffle"), **cluster.connection.kafka_python()
    )
    partitions = [TopicPartition(job.topic(Role.REPORTS), each) for each in range(job.partitions)]
    for each in partitions:
        cluster.producer.send(each.topic, b"", partition=each.partition)
    cluster.producer.flush()
    consumer.assign(partitions)
    consumer.commit({each: OffsetAndMetadata(1, "", -1) for each in partitions})
    consumer.close()


def _measured(what: str, epochs: int, command: list[str], until: str | None) -> Start:
    """Run a command to its end, or until it says something on standard error or output."""
    before = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE if until else subprocess.DEVNULL,
        stderr=subprocess.STDOUT if until else subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            if until is not None:
                assert process.stdout is not None
                for line in process.stdout:
                    found = re.search(until, line)
                    if found is not None:
                        _ask(found, epochs)
                        break
                return _taken(what, epochs, before, process.pid)
            taken = _taken(what, epochs, before, process.pid)
            while process.poll() is None and time.monotonic() < before + _PATIENCE:
                with suppress(psutil.Error):
                    now = _taken(what, epochs, before, process.pid)
                    # Of one that has ended nobody knows how much memory it had.
                    taken = now if now.peak_megabytes else taken
                time.sleep(0.02)
            return taken
        finally:
            # Asked to end, a shuffle worker leaves word of what was decided, as in operation.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _ask(found: re.Match[str], epochs: int) -> None:
    """Ask a page for what a browser asks first, until it knows the job's last epoch."""
    if not found.groups():
        return
    address = found[1].rstrip("/")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{address}/api/jobs") as answer:
            jobs = json.loads(answer.read())["jobs"]
        if jobs and jobs[0]["last_epoch"] == epochs:
            break
        time.sleep(0.05)
    for path in ("/api/jobs/long", "/api/jobs/long/curve", "/figures.json?job=long"):
        with urllib.request.urlopen(address + path) as answer:
            answer.read()


def _taken(what: str, epochs: int, before: float, pid: int) -> Start:
    return Start(
        what=what,
        epochs=epochs,
        seconds=round(time.monotonic() - before, 2),
        processor_seconds=round(processor_seconds(pid), 2),
        peak_megabytes=round(peak_megabytes(pid), 1),
    )


def measure(connection: Connection, epochs: int, only: list[str]) -> Iterator[Start]:
    """Start and ask one after the other."""
    arguments = connection.arguments()
    for stage in STAGES:
        command = ["run", stage, "long", "--name", "bench", *arguments]
        if stage in only:
            yield _measured(stage, epochs, dpstream_command(*command), r"partitions: \d")
    if "page" in only:
        command = ["serve", "long", "--port", "0", *arguments]
        yield _measured("page", epochs, dpstream_command(*command), r"(http://127\S+)")
    for verb, command in VERBS.items():
        if verb in only:
            yield _measured(verb, epochs, dpstream_command(*command, *arguments), None)


def main() -> None:
    """Fill the topics, and measure."""
    everything = [*STAGES, "page", *VERBS]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.long_history_on_kafka")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=everything, default=everything)
    given = parser.parse_args()
    # Processes that are started again and again would compile everything each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with (
        local_broker(print) as connection,
        Cluster(connection) as cluster,
        _deployed(cluster, given.folder) as epochs,
    ):
        for start in measure(connection, epochs, given.only):
            print(json.dumps(asdict(start)), flush=True)


if __name__ == "__main__":
    main()
