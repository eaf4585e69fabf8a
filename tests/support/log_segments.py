"""Read the records in a topic's log segments from disk, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka.record import MemoryRecords


@dataclass(frozen=True, slots=True)
class StoredRecord:
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def stored_records(data: Path, topic: str) -> Iterator[StoredRecord]:
    """Yield all records of a topic by partition, including those below its start offset."""
    partitions = sorted(
        (int(folder.name.rpartition("-")[2]), folder)
        for folder in data.rglob(f"{topic}-*")
        if folder.is_dir() and folder.name.rpartition("-")[0] == topic
    )
    for partition, folder in partitions:
        for segment in sorted(folder.glob("*.log")):
            batches = MemoryRecords(segment.read_bytes())
            while batches.has_next():
                batch = batches.next_batch()
                if batch is None:
                    break
                for record in batch:
                    yield StoredRecord(
                        partition,
                        record.offset,
                        record.key,
                        bytes(record.value or b""),
                        tuple((name, bytes(said)) for name, said in record.headers),
                    )
