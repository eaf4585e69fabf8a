"""Workers of a job on a real broker, as processes, each with the private keys of its own party."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.stages.topic_uses import stages_of

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds, far longer than anything takes: who needs them has failed."""


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
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dpstream.pipeline.cli",
            "run",
            stage,
            job.name,
            "--name",
            name,
            *own,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "DPSTREAM_BOOTSTRAP_SERVERS": servers,
            "DPSTREAM_HOME": str(folder / "home"),
        },
        start_new_session=True,
    )
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
    deadline = time.monotonic() + PATIENCE
    while cluster.end_offsets(topic)[0] < records:
        assert time.monotonic() < deadline, f"nothing in {topic}"
        time.sleep(0.1)
