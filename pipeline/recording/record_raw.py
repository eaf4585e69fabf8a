"""Raw reports while they are there: the shuffle stage deletes them once their window is out.

Whoever records them reads what has come again and again. What was deleted in between is known by
its offsets, and so are the epochs that it belonged to: their manifests name theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pipeline.actions import LogRecord, LogSlice, ReadRange, Steps, end_offset
from pipeline.errors import WRONG_INPUT, DpstreamError
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.recording.recordings import LostRange, RecordedReports
from pipeline.stages.admission import decode_raw
from topics.frames import CodecError
from topics.manifests import Manifest
from topics.names import Role


class RawRecordingError(DpstreamError, ValueError):
    """Raw reports of a job cannot be recorded; the message says why."""

    exit_code = WRONG_INPUT


def check_raw(job: DeployedJob) -> None:
    """Raise `RawRecordingError` unless raw reports of a job may be kept."""
    if job.replay_of is not None:
        raise RawRecordingError(f"job {job.name} is a replay and has no raw reports: omit --raw")
    if job.sealed is not None:
        raise RawRecordingError(
            f"job {job.name} seals its reports, and its stages alone can open the raw ones: "
            "omit --raw"
        )
    if job.instances > 1:
        raise RawRecordingError(
            f"job {job.name} has {job.instances} shuffle instances, so that nobody has all that a "
            "device sends, and --raw would put it together again: omit --raw"
        )
    if job.protocol_entry.needs_shuffle:
        raise RawRecordingError(
            f"job {job.name} is of protocol {job.protocol}, whose reports are not private before "
            "they are shuffled: they are deleted then, and --raw would keep them for good. Omit it"
        )


class RawLog:
    """Reads the raw topic of a deployment as far as it goes, and notes what is gone.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        places: where to begin, by partition; what is not named from the deployment's start.
        lost: ranges that are known to be gone.
    """

    def __init__(
        self,
        job: DeployedJob,
        first: int,
        places: Mapping[int, int],
        lost: Iterable[LostRange],
    ) -> None:
        self._job = job
        self._first = first
        self._lost = list(lost)
        self.positions = {
            partition: max(start, places.get(partition, 0))
            for partition, start in enumerate(job.start_offsets[Role.REPORTS])
        }
        self._ends = dict(self.positions)

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """What is gone."""
        return tuple(self._lost)

    def find_end(self) -> Steps[None]:
        """See how far the topic goes by now."""
        for partition in self.positions:
            self._ends[partition] = yield from end_offset(Role.REPORTS, partition)

    def next(self) -> Steps[list[RecordedReports] | None]:
        """Some records more, of this deployment; None when all there were have been read."""
        for partition, position in self.positions.items():
            end = self._ends[partition]
            if position >= end:
                continue
            reply = yield ReadRange(Role.REPORTS, partition, position, end)
            assert isinstance(reply, LogSlice)
            return list(self._take_in(partition, reply.records, end))
        return None

    def lacks(self, manifest: Manifest) -> bool:
        """Whether raw records of an epoch are gone that may have belonged to its window."""
        partition = self._job.partition_of(manifest.epoch)
        return any(
            lost.partition == partition
            and lost.start < manifest.cut_offset
            and manifest.first_offset < lost.stop
            for lost in self._lost
        )

    def _take_in(
        self, partition: int, records: tuple[LogRecord, ...], end: int
    ) -> Iterator[RecordedReports]:
        for record in records:
            self._pass(partition, record.offset)
            self.positions[partition] = record.offset + 1
            try:
                decoded = decode_raw(record.value)
            except CodecError:
                continue
            if decoded.deployment == self._job.deployment and decoded.epoch >= self._first:
                yield RecordedReports(
                    decoded.epoch, partition, record.offset, record.timestamp, record.value
                )
        if not records:
            self._pass(partition, end)

    def _pass(self, partition: int, offset: int) -> None:
        """Note that there was nothing between where reading stood and an offset."""
        position = self.positions[partition]
        if position < offset:
            self._lost.append(LostRange(partition, position, offset))
            self.positions[partition] = offset
