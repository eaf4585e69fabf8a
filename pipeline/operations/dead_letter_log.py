"""Dead letters of a deployment: records that its stages have rejected."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.stages.device_admission import RawRecord
from dpstream.pipeline.state import private_folder
from dpstream.pipeline.whole_files import replaced_whole
from dpstream.topics.batches import decode_batch, decode_punctuation
from dpstream.topics.chunks import Chunk, decode_chunk
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.loose_batches import decode_loose_batch, decode_watermark
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Discard
from dpstream.topics.redriven import Redriven
from dpstream.topics.sealed_batches import decode_sealed_batch

_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")

LogPosition: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of a rejected record."""


class DeadLetterLog:
    """Rejected records of a deployment, read incrementally.

    `redriven` and `discarded` contain the positions of the requeued and discarded letters read so
    far. From offset `markers_from` on, all records are markers of requeued or discarded letters.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._log = TopicReader(cluster, job, Role.DEAD_LETTERS)
        self._job = job
        self._seen: dict[LogPosition, int] = {}
        self.markers_from = self.position
        self.redriven: set[LogPosition] = set()
        self.discarded: set[LogPosition] = set()

    @property
    def position(self) -> int:
        return self._log.position

    def read(self) -> Iterator[DeadLetter]:
        for record in self._log.read():
            try:
                letter = DeadLetter.from_record(record.value, record.headers)
            except CodecError:
                self._mark(record.value)
                continue
            # A worker that is killed before it commits rejects the same records again.
            self.markers_from = self.position
            if (place := log_position(letter)) not in self._seen:
                self._seen[place] = record.offset
                yield letter

    def _mark(self, value: bytes) -> None:
        with suppress(CodecError):
            marker = Redriven.from_bytes(value)
            if marker.deployment == self._job.deployment:
                reports = self._job.topic(marker.role)
                self.redriven.update(
                    (reports, marker.partition, offset) for offset in marker.offsets
                )
        with suppress(CodecError):
            discard = Discard.from_bytes(value)
            if discard.deployment == self._job.deployment:
                self.discarded.update(
                    place for place, offset in self._seen.items() if offset < discard.end
                )

    @property
    def first_unhandled(self) -> int:
        """Offset of the oldest unhandled letter, or else of the next record to read."""
        handled = self.redriven | self.discarded
        return min(
            (offset for place, offset in self._seen.items() if place not in handled),
            default=self.position,
        )


def discard(cluster: Cluster, job: DeployedJob) -> int:
    """Discard and delete all current dead letters; return how many of them were unhandled.

    If a ClusterError is raised, the letters are discarded, but their records are not deleted yet.
    """
    log = DeadLetterLog(cluster, job)
    places = {log_position(letter) for letter in log.read()}
    new = len(places - log.redriven - log.discarded)
    if new:
        record = Discard(job.deployment, log.position)
        cluster.append(job.topic(Role.DEAD_LETTERS), record.to_bytes())
    forget_handled(cluster, job)
    return new


def forget_handled(cluster: Cluster, job: DeployedJob) -> None:
    """Delete all dead letters before the oldest one that is neither requeued nor discarded.

    Dead letters contain users' reports, which are no longer needed. After an interruption, the next
    command about dead letters completes the deletion.
    """
    log = DeadLetterLog(cluster, job)
    deque(log.read(), maxlen=0)
    # Keep the latest markers, which determine the number of requeued letters.
    end = min(log.first_unhandled, log.markers_from)
    topic = job.topic(Role.DEAD_LETTERS)
    if cluster.start_offsets(topic)[0] < end:
        cluster.delete_below(topic, end)


def log_position(letter: DeadLetter) -> LogPosition:
    return letter.topic, letter.partition, letter.offset


def header_of(letter: DeadLetter) -> dict[str, str | int] | None:
    """Return a rejected record's identity fields, never its content; None if unreadable."""
    decoders: Mapping[RecordType, Callable[[bytes], RawRecord | Chunk]] = {
        RecordType.BATCH: decode_batch,
        RecordType.SEALED_BATCH: decode_sealed_batch,
        RecordType.PUNCTUATION: decode_punctuation,
        RecordType.LOOSE_BATCH: decode_loose_batch,
        RecordType.WATERMARK: decode_watermark,
        RecordType.CHUNK: decode_chunk,
    }
    try:
        kind = kind_of(letter.value)
        record = decoders[kind](letter.value)
    except (CodecError, KeyError):
        return None
    identities = ("deployment", "fingerprint", "enrollment", "batch")
    return {
        "kind": kind.name.lower(),
        "epoch": record.epoch,
        **{name: getattr(record, name).hex() for name in identities if hasattr(record, name)},
    }


def save_dead_letter(letter: DeadLetter, folder: Path) -> Path:
    # The topic name in a letter is untrusted: it must not lead to another folder.
    topic = _NOT_IN_TOPICS.sub("_", letter.topic)
    path = private_folder(folder) / f"{topic}-{letter.partition}-{letter.offset}.bin"
    path.touch(mode=0o600)
    with replaced_whole(path) as part:
        part.write_bytes(letter.value)
    return path
