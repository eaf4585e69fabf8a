"""Worker processes of a job on a real broker, with the private keys of their parties."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_bytes

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.stages.topic_uses import stages_of
from tests.support.commands import Commands
from tests.support.processes import TIMEOUT, start_command, wait_until


@contextmanager
def deployed_with_keys(
    text: str, parties: Iterable[str], servers: str, folder: Path, dpstream: Commands
) -> Iterator[tuple[Cluster, DeployedJob]]:
    for party in parties:
        assert dpstream("keygen", party, "--keys", folder / party).code == 0
    job_file = folder / "job.yaml"
    job_file.write_text(text)
    with Cluster(Connection((servers,))) as cluster:
        yield cluster, deploy(cluster, load_job(job_file), deployment=token_bytes(16), now=0)


@contextmanager
def worker(
    job: DeployedJob,
    stage: str,
    servers: str,
    folder: Path,
    parties: Mapping[str, str],
    name: str = "first",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of a stage, with its party's key folder if `parties` lists the stage."""
    own = ["--keys", str(folder / parties[stage])] if stage in parties else []
    command = ("run", stage, job.name, "--name", name, *own)
    process = start_command(*command, servers=servers, home=folder / "home")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT)


@contextmanager
def workers(
    job: DeployedJob, servers: str, folder: Path, parties: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        yield {
            stage: stack.enter_context(worker(job, stage, servers, folder, parties))
            for stage in stages_of(job)
        }


def wait_for(cluster: Cluster, topic: str, records: int) -> None:
    wait_until(lambda: cluster.end_offsets(topic)[0] >= records, f"{records} records in {topic}")
