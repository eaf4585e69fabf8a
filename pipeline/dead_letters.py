"""The dead letters of a deployment: what its stages refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.cluster import Cluster
from pipeline.deployed_job import DeployedJob
from pipeline.state import private_folder
from topics.frames import CodecError
from topics.names import Role
from topics.records import DeadLetter


def read_dead_letters(cluster: Cluster, job: DeployedJob) -> Iterator[DeadLetter]:
    """The records of the deployment that were refused, each once, in the order of refusal."""
    seen = set()
    topic = job.topic(Role.DEAD_LETTERS)
    for record in cluster.read(topic, start=job.start_offset(Role.DEAD_LETTERS)):
        try:
            letter = DeadLetter.from_record(record.value, record.headers)
        except CodecError:
            continue
        # A worker that was killed before it committed has refused them twice.
        where = letter.topic, letter.partition, letter.offset
        if where not in seen:
            seen.add(where)
            yield letter


def save_dead_letter(letter: DeadLetter, folder: Path) -> Path:
    """Write the refused record, byte by byte, to a file of its own that only its owner can read."""
    path = private_folder(folder) / f"{letter.topic}-{letter.partition}-{letter.offset}.bin"
    path.touch(mode=0o600)
    path.write_bytes(letter.value)
    return path
