"""The dead letters of a deployment: what its stages refused."""

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
from dpstream.topics.records import DeadLetter, Dismissal
from dpstream.topics.redriven import Redriven
from dpstream.topics.sealed_batches import decode_sealed_batch

_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset at which a record was refused."""


class DeadLetterLog:
    """The records of the deployment that were refused, read as far as there are any.

    Attributes:
        redriven: places of those that were fed back, as far as the log has been read.
        dismissed: places of those that somebody has seen and dismissed.
        markers_from: the offset after the last letter: from there on there are markers alone.
    """

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._log = TopicReader(cluster, job, Role.DEAD_LETTERS)
        self._job = job
        self._seen: dict[Place, int] = {}
        self.markers_from = self.position
        self.redriven: set[Place] = set()
        self.dismissed: set[Place] = set()

    @property
    def position(self) -> int:
        """The offset at which it is read on."""
        return self._log.position

    def read(self) -> Iterator[DeadLetter]:
        """What was not read before, each record once, in the order of refusal."""
        for record in self._log.read():
            try:
                letter = DeadLetter.from_record(record.value, record.headers)
            except CodecError:
                self._mark(record.value)
                continue
            # A worker that was killed before it committed has refused them twice.
            self.markers_from = self.position
            if (place := place_of(letter)) not in self._seen:
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
            dismissal = Dismissal.from_bytes(value)
            if dismissal.deployment == self._job.deployment:
                self.dismissed.update(
                    place for place, offset in self._seen.items() if offset < dismissal.end
                )

    @property
    def first_unhandled(self) -> int:
        """The offset of the oldest letter, of those read, that is neither fed back nor dismissed.

        Without one, the offset at which the log is read on.
        """
        handled = self.redriven | self.dismissed
        return min(
            (offset for place, offset in self._seen.items() if place not in handled),
            default=self.position,
        )


def dismiss(cluster: Cluster, job: DeployedJob) -> int:
    """Delete the dead letters that there are; returns how many nobody had handled yet.

    Raises:
        ClusterError: they are dismissed, but the cluster does not delete records.
    """
    log = DeadLetterLog(cluster, job)
    places = {place_of(letter) for letter in log.read()}
    new = len(places - log.redriven - log.dismissed)
    if new:
        record = Dismissal(job.deployment, log.position)
        cluster.append(job.topic(Role.DEAD_LETTERS), record.to_bytes())
    forget_handled(cluster, job)
    return new


def forget_handled(cluster: Cluster, job: DeployedJob) -> None:
    """Delete the dead letters before the oldest one that is neither fed back nor dismissed.

    They hold people's reports, which nobody needs any more. Whoever is interrupted has it done by
    the next who handles any.

    Raises:
        ClusterError: the cluster does not delete records.
    """
    log = DeadLetterLog(cluster, job)
    deque(log.read(), maxlen=0)
    # The latest markers stay, and tell how many there were.
    end = min(log.first_unhandled, log.markers_from)
    topic = job.topic(Role.DEAD_LETTERS)
    if cluster.start_offsets(topic)[0] < end:
        cluster.delete_below(topic, end)


def place_of(letter: DeadLetter) -> Place:
    """Where a record was refused."""
    return letter.topic, letter.partition, letter.offset


def header_of(letter: DeadLetter) -> dict[str, str | int] | None:
    """What the refused record says it is, and nothing of what it holds; None if it is unreadable.

    Its ``kind`` and ``epoch``, and in hexadecimal those of ``deployment``, ``fingerprint``,
    ``enrolment`` and ``batch`` that such a record has.
    """
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
    identities = ("deployment", "fingerprint", "enrolment", "batch")
    return {
        "kind": kind.name.lower(),
        "epoch": record.epoch,
        **{name: getattr(record, name).hex() for name in identities if hasattr(record, name)},
    }


def save_dead_letter(letter: DeadLetter, folder: Path) -> Path:
    """Write the refused record, byte by byte, to a file of its own that only its owner can read."""
    # What the letter says of its topic is anybody's text: it names no other folder.
    topic = _NOT_IN_TOPICS.sub("_", letter.topic)
    path = private_folder(folder) / f"{topic}-{letter.partition}-{letter.offset}.bin"
    path.touch(mode=0o600)
    with replaced_whole(path) as part:
        part.write_bytes(letter.value)
    return path
