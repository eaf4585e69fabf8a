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
from pipeline.stages.decision_log import DecisionLog
from pipeline.stages.device_admission import decode_collected
from topics.frames import CodecError
from topics.manifests import Manifest, decode_manifest
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
    if job.protocol_entry.needs_shuffle:
        raise RawRecordingError(
            f"job {job.name} is of protocol {job.protocol}, whose reports are not private before "
            "they are shuffled: they are deleted then, and --raw would keep them for good. Omit it"
        )


class RawLog:
    """Reads the raw topics of a deployment as far as they go, and notes what is gone.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        places: where to begin, by topic and partition; what is not named from the deployment's
            start.
        lost: ranges that are known to be gone.
    """

    def __init__(
        self,
        job: DeployedJob,
        first: int,
        places: Mapping[tuple[Role, int], int],
        lost: Iterable[LostRange],
    ) -> None:
        self._job = job
        self._decode = decode_raw if job.devices is None else decode_collected
        self._first = first
        self._lost = list(lost)
        self.positions = {
            (role, partition): max(start, places.get((role, partition), 0))
            for role in job.report_roles
            for partition, start in enumerate(job.start_offsets[role])
        }
        self._ends = dict(self.positions)
        # What is said of the parts of further shuffle instances: their offsets.
        self._parts: dict[tuple[int, int], Manifest] = {}
        self._decisions = DecisionLog(job)
        self._manifest_log = job.cursor(Role.MANIFESTS, self._apply) if job.instances > 1 else None

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """What is gone."""
        return tuple(self._lost)

    def find_end(self) -> Steps[None]:
        """See how far the topics go by now."""
        for place in self.positions:
            self._ends[place] = yield from end_offset(*place)
        if self._manifest_log is not None:
            yield from self._manifest_log.catch_up()

    def next(self) -> Steps[list[RecordedReports] | None]:
        """Some records more, of this deployment; None when all there were have been read."""
        for place, position in self.positions.items():
            end = self._ends[place]
            if position >= end:
                continue
            reply = yield ReadRange(*place, position, end)
            assert isinstance(reply, LogSlice)
            return list(self._take_in(place, reply.records, end))
        return None

    def lacking(self, manifest: Manifest) -> list[Role]:
        """The topics of which records of an epoch are gone that may have belonged to its window.

        Of further parts it is said where they were if a window is released. Of one that is not, any
        record that is gone may have belonged to it.
        """
        roles = enumerate(self._job.report_roles, 1)
        return [role for part, role in roles if self._lacks(role, part, manifest)]

    def _lacks(self, role: Role, part: int, manifest: Manifest) -> bool:
        partition = self._job.partition_of(manifest.epoch)
        own: Manifest | None = manifest
        if part > 1:
            own = self._parts.pop((part, manifest.epoch), None)
        return any(
            (lost.topic, lost.partition) == (role, partition)
            and (own is None or (lost.start < own.cut_offset and own.first_offset < lost.stop))
            for lost in self._lost
        )

    def _apply(self, record: LogRecord) -> None:
        self._decisions.apply(record)
        try:
            part = decode_manifest(record.value)
        except CodecError:
            return
        own = (part.deployment, part.fingerprint) == (self._job.deployment, self._job.fingerprint)
        decided = part.epoch >= self._first and part.epoch in self._decisions.decided
        if own and decided and part.instance > 1:
            self._parts.setdefault((part.instance, part.epoch), part)

    def _take_in(
        self, place: tuple[Role, int], records: tuple[LogRecord, ...], end: int
    ) -> Iterator[RecordedReports]:
        role, partition = place
        for record in records:
            self._pass(place, record.offset)
            self.positions[place] = record.offset + 1
            try:
                decoded = self._decode(record.value)
            except CodecError:
                continue
            if decoded.deployment == self._job.deployment and decoded.epoch >= self._first:
                yield RecordedReports(
                    decoded.epoch, partition, record.offset, record.timestamp, record.value, role
                )
        if not records:
            self._pass(place, end)

    def _pass(self, place: tuple[Role, int], offset: int) -> None:
        """Note that there was nothing between where reading stood and an offset."""
        (role, partition), position = place, self.positions[place]
        if position < offset:
            self._lost.append(LostRange(partition, position, offset, role.value))
            self.positions[place] = offset
