"""All observations of a run by party, under the names of `tests.support.public_facts`.

The randomized view consists of the messages of released windows, which `SameRelease` makes the same
in two runs, and the messages in reports, which `seen_reports` omits. Everything else is compared.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.decision_log import Decision
from dpstream.pipeline.stages.instance_stage import InstanceStage
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.messages import MessageArray, Messages
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.support.commands import Commands
from tests.support.records_seen import seen_record

Seen = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SameRelease:
    """Replace the messages of released epochs by messages of the first run, stored in `folder`.

    Decisions to release a window, and the stage's own noise, are not replaced.
    """

    folder: Path

    @property
    def epochs(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.iterdir() if path.stem.isdigit())

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for stage in (ShuffleStage, InstanceStage):
            monkeypatch.setattr(stage, "_write", self._writes_first(stage._write))
        monkeypatch.setattr(
            AddedDevices, "ciphertexts", self._first_ciphertexts(AddedDevices.ciphertexts)
        )

    def _first_ciphertexts(
        self, ciphertexts: Callable[..., Iterator[MessageArray]]
    ) -> Callable[..., Iterator[MessageArray]]:
        """Return the first run's ciphertexts, whose encryption is random."""

        def first_ciphertexts(
            added: AddedDevices, epoch: int, role: Role
        ) -> Iterator[MessageArray]:
            for index, made in enumerate(ciphertexts(added, epoch, role)):
                file = self.folder / f"added {added._party} {epoch} {index}.npy"
                if not file.exists():
                    np.save(file, made)
                first: MessageArray = np.load(file)
                assert first.shape == made.shape
                yield first

        return first_ciphertexts

    def _writes_first(self, write: Callable[..., Steps[None]]) -> Callable[..., Steps[None]]:
        def write_first(
            stage: Any, state: Any, decision: Decision, words: MessageMultiset
        ) -> Steps[None]:
            same = MessageMultiset(stage._job.format_of(Role.REPORTS))
            epoch, instance = decision.manifest.epoch, decision.manifest.instance
            name = f"{epoch}" if instance == 1 else f"{epoch}-{instance}"
            same.add(self._first(name, words))
            yield from write(stage, state, decision, same)

        return write_first

    def _first(self, name: str, words: MessageMultiset) -> Messages:
        path = self.folder / f"{name}.pickle"
        if not path.exists():
            path.write_bytes(pickle.dumps(words.sorted()))
        first: Messages = pickle.loads(path.read_bytes())
        return first


def fix_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every draw in this process depend only on the drawing component and the time."""
    randomness, producers = seeded_generator(1), count()

    def generators_of_a_producer() -> Callable[[str, int], np.random.Generator]:
        index = next(producers)
        return lambda purpose, number: seeded_generator(2, index, len(purpose), number)

    def token_bytes(size: int = 32) -> bytes:
        return randomness.bytes(size)

    monkeypatch.setattr("secrets.token_bytes", token_bytes)
    monkeypatch.setattr("secrets.token_hex", lambda size=32: randomness.bytes(size).hex())
    monkeypatch.setattr("dpstream.pipeline.connect.token_bytes", token_bytes)
    monkeypatch.setattr(
        "dpstream.pipeline.devices.producer.cryptographic_generators", generators_of_a_producer
    )


def seen_topic(
    cluster: Cluster, job: DeployedJob, role: Role, *, timed: bool
) -> list[tuple[object, ...]]:
    """Return the records of a topic by partition, with start and end offsets."""
    topic = job.topic(role)
    starts, ends = cluster.start_offsets(topic), cluster.end_offsets(topic)
    seen: list[tuple[object, ...]] = [(starts, ends)]
    for partition in range(len(ends)):
        records = cluster.read(topic, partition)
        seen.extend(seen_record(job, record, timed=timed) for record in records)
    return seen


def seen_newest(cluster: Cluster, topic: str, keys: Callable[[bytes], bool]) -> dict[bytes, Any]:
    """Return the latest JSON for each selected key of a compacted topic."""
    newest = {record.key: record.value for record in cluster.read(topic) if record.key is not None}
    return {key: json.loads(value) for key, value in newest.items() if keys(key) and value}


def of_job(job: DeployedJob) -> Callable[[bytes], bool]:
    """Return a predicate for the keys of `JOBS_TOPIC` about a job."""
    name = job.name.encode()
    return lambda key: key == name or key.endswith(b"/" + name)


def seen_deployments(cluster: Cluster, job: DeployedJob) -> tuple[dict[bytes, Any], list[object]]:
    """Return the job's records in ``dpstream.jobs`` and the ledger, without times and draws."""
    charged: list[object] = [
        (said.kind, [asdict(replace(charge, at=0)) for charge in charges], said.facts)
        for said in (entry.draft for entry in read_spending(cluster).chain.entries)
        # Jobs of several runs have the same randomness, and so the same deployment id.
        if (charges := [each for each in said.charges if each.job == job.name])
    ]
    return seen_newest(cluster, JOBS_TOPIC, of_job(job)), charged


def seen_commands(dpstream: Commands, job: str) -> dict[str, object]:
    """Return the output of operators' commands."""
    lines = {
        "status": ("status", job, "--json"),
        "status of all": ("status", job),
        "producers": ("producers", job, "--json"),
        "dead letters": ("dead-letters", job, "--json"),
        "list": ("list", "--json"),
    }
    return _said(dpstream, lines)


def seen_results(dpstream: Commands, job: str) -> dict[str, object]:
    """Return the output of analysts' commands."""
    lines = {
        "table": ("estimates", job),
        "csv": ("estimates", job, "--format", "csv"),
        "json": ("estimates", job, "--json"),
        "smoothed": ("estimates", job, "--smoothed", "--json"),
    }
    return _said(dpstream, lines)


def _said(dpstream: Commands, lines: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, line in lines.items():
        result = dpstream(*line)
        found[name] = result.code, result.output, result.errors
    return found


def seen_recording(dpstream: Commands, job: str, folder: Path) -> dict[str, object]:
    recorded = dpstream("record", job, "--output", folder, "--json")
    verified = dpstream("record", "--verify", folder, "--deep", "--json")
    said = recorded.json
    del said["folder"]
    assert verified.code == 0, verified.errors
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {"said": said, "verified": {**verified.json, "folder": None}, "files": files}


API = (
    "",
    "/curve",
    "/top",
    "/quantiles",
    "/sparklines",
    "/table",
    "/pipeline",
    "/estimates?format=json",
    "/estimates?format=csv",
    "/estimates?format=parquet",
)
"""Paths below ``/api/jobs/JOB``."""


def api_paths(job: str) -> list[str]:
    return ["/api/jobs", "/api/recent", *(f"/api/jobs/{job}{path}" for path in API)]


def as_cluster(cluster: object) -> Cluster:
    return cast(Cluster, cluster)
