"""The dead letters of a deployment: what its stages refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.cluster import Cluster
from pipeline.deployed_job import DeployedJob
from pipeline.state import private_folder
from topics.batches import Batch, Punctuation, decode_batch, decode_punctuation
from topics.chunks import Chunk, decode_chunk
from topics.frames import CodecError, Kind, kind_of
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


def header_of(letter: DeadLetter) -> dict[str, str | int] | None:
    """What the refused record says it is, and nothing of what it holds; None if it is unreadable.

    Its ``kind`` and ``epoch``, and in hexadecimal those of ``deployment``, ``fingerprint``,
    ``enrolment`` and ``batch`` that such a record has.
    """
    decoders: Mapping[Kind, Callable[[bytes], Batch | Punctuation | Chunk]] = {
        Kind.BATCH: decode_batch,
        Kind.PUNCTUATION: decode_punctuation,
        Kind.CHUNK: decode_chunk,
    }
    try:
        kind = kind_of(letter.value)
        record = decoders[kind](letter.value)
    except (CodecError, KeyError):
        return None
    identities = ("deployment", "fingerprint", "enrolment", "batch")
    return {
        "kind": kind.name.lower(),
        "epoch": record.epoch,
        **{name: getattr(record, name).hex() for name in identities if hasattr(record, name)},
    }


def save_dead_letter(letter: DeadLetter, folder: Path) -> Path:
    """Write the refused record, byte by byte, to a file of its own that only its owner can read."""
    path = private_folder(folder) / f"{letter.topic}-{letter.partition}-{letter.offset}.bin"
    path.touch(mode=0o600)
    path.write_bytes(letter.value)
    return path
