"""Workers of a job on a real broker, as processes, each with the private keys of its own party."""

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
from tests.support.processes import PATIENCE, start_command, wait_until


@contextmanager
def deployed_with_keys(
    text: str, parties: Iterable[str], servers: str, folder: Path, dpstream: Commands
) -> Iterator[tuple[Cluster, DeployedJob]]:
    """Deploy a job file in the working folder, with a folder of keys for each party."""
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
    """A worker of a stage.

    Args:
        job: as deployed.
        stage: of the job.
        servers: of the broker.
        folder: has a folder of keys for each party.
        parties: by their stages; the others have no keys.
        name: of the worker.
    """
    own = ["--keys", str(folder / parties[stage])] if stage in parties else []
    command = ("run", stage, job.name, "--name", name, *own)
    process = start_command(*command, servers=servers, home=folder / "home")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextmanager
def workers(
    job: DeployedJob, servers: str, folder: Path, parties: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A worker of each stage, by the name of the stage."""
    with ExitStack() as stack:
        yield {
            stage: stack.enter_context(worker(job, stage, servers, folder, parties))
            for stage in stages_of(job)
        }


def wait_for(cluster: Cluster, topic: str, records: int) -> None:
    """Until a topic of one partition has had so many."""
    wait_until(lambda: cluster.end_offsets(topic)[0] >= records, f"{records} records in {topic}")
