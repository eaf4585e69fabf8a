"""Stages on a real broker sign what they do, are held to it, and one that cheats is convicted."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import read_noise_key
from pipeline.kafka.cluster import Cluster, KafkaTransport
from pipeline.kafka.connection import Connection
from pipeline.operations.attestations import GROUP
from pipeline.operations.deployments import deploy
from pipeline.state import noise_key_file, stage_key_file
from tests.support.commands import Commands
from topics.chunks import decode_chunk, encode_chunk
from topics.manifests import decode_manifest, encode_manifest
from topics.names import Role
from topics.signed import StageRecord, read_statement

pytestmark = [pytest.mark.kafka, pytest.mark.verify]

ROOT = Path(__file__).parents[2]
# Far longer than anything takes: who needs it has failed.
PATIENCE = 120.0
USERS, EPOCHS = 60, 6


def test_stages_are_held_to_their_word_and_one_that_cheats_is_convicted(
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", bootstrap_servers)
    dpstream = Commands(capsys)
    install_vault(tmp_path / "packages", monkeypatch)
    values = {
        "name": job_name,
        "protocol": "count_min",
        "parameters": {
            "epsilon": 0.5,
            "delta": 1e-6,
            "domain": ["a", "b", "c"],
            "rows": 2,
            "buckets": 8,
            "dummies": "shuffle",
        },
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": USERS, "grace": "1h"},
        "topics": {"partitions": 2},
    }
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = deploy(cluster, make_job(values), deployment=secrets.token_bytes(16), now=0)
        with working(job):
            produce(cluster, job)
            wait_for(cluster, job)
        said = dpstream("verify-stage", job_name, "--json").json
        verdicts = {each["rule"]: each["verdict"] for each in said["findings"]}
        assert verdicts["noise"] == "verified", said
        assert (said["violated"], said["decided"], said["unseen"]) == (False, EPOCHS, 0)
        assert stage_key_file("shuffle").stat().st_mode & 0o777 == 0o600
        (started,) = (
            statement
            for statement in (
                read_statement(record.value).statement
                for record in cluster.read(job.topic(Role.STAGES))
            )
            if isinstance(statement, StageRecord)
        )
        assert started.noise_key == read_noise_key(noise_key_file(job_name)).digest
        assert "dpstream" in started.software
        exactly = dpstream("verify-stage", job_name, "--noise-key", noise_key_file(job_name))
        assert (exactly.code, exactly.errors) == (0, "")
        expected = started.software["dpstream"].version
        assert dpstream("verify-stage", job_name, "--expect-version", expected).code == 0
        assert broken(dpstream, job_name, "--expect-version", "0") == ["software"]
        vouched = dpstream("verify-stage", job_name, "--attestation", "vault", "--json").json
        (attested,) = (each for each in vouched["findings"] if each["rule"] == "attestation")
        assert (attested["verdict"], attested["checked"]) == ("verified", 1)

        cheat(cluster, job)
        assert set(broken(dpstream, job_name)) == {"signatures", "membership", "attempts"}


def install_vault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers a scheme of attestation, for this process and for workers."""
    about = folder / "vault-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\nvault = tests.support.vault:vault\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(folder)


def produce(cluster: Cluster, job: DeployedJob) -> None:
    with Producer(job, None, name="p", transport=KafkaTransport(cluster, job.name)) as producer:
        producer.enrol([f"u{user}" for user in range(USERS)])
        for epoch in range(1, EPOCHS + 1):
            producer.report_all(epoch, np.full((USERS, *job.domain.shape), job.domain.initial))
            producer.close(epoch)


@contextmanager
def working(job: DeployedJob) -> Iterator[None]:
    """All stages run meanwhile."""
    workers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "pipeline.cli", "run", stage, job.name, "--name", "w"),
                *(("--attestation", "vault") if stage == "shuffle" else ()),
            ],
            cwd=ROOT,
            start_new_session=True,
        )
        for stage in job.stages
    ]
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(PATIENCE)


def wait_for(cluster: Cluster, job: DeployedJob) -> None:
    deadline = time.monotonic() + PATIENCE
    while cluster.end_offsets(job.topic(Role.ESTIMATES)) != [EPOCHS]:
        assert time.monotonic() < deadline, "the workers do not finish"
        time.sleep(0.2)


def broken(dpstream: Commands, job: str, *options: object) -> list[str]:
    said = dpstream("verify-stage", job, "--json", *options)
    assert said.code == 1
    findings: list[dict[str, Any]] = json.loads(said.output)["findings"]
    return [each["rule"] for each in findings if each["verdict"] == "violated"]


def cheat(cluster: Cluster, job: DeployedJob) -> None:
    """Decide an epoch anew, and release its window again, with less in it."""
    manifests = list(cluster.read(job.topic(Role.MANIFESTS)))
    first = decode_manifest(manifests[0].value)
    other = replace(first, timestamp=first.timestamp + 1)
    offset = cluster.append(job.topic(Role.MANIFESTS), encode_manifest(other))
    partition = job.partition_of(first.epoch)
    chunks = [
        decode_chunk(record.value)
        for record in cluster.read(job.topic(Role.SHUFFLED), partition)
        if decode_chunk(record.value).epoch == first.epoch
    ]
    (chunk,) = chunks
    words = replace(
        chunk.words,
        values=chunk.words.values[1:],
        counts=None if chunk.words.counts is None else chunk.words.counts[1:],
    )
    less = replace(chunk, attempt=bytes(16), manifest_offset=offset, words=words)
    cluster.producer.send(
        job.topic(Role.SHUFFLED), value=encode_chunk(less), partition=partition
    ).get(PATIENCE)
