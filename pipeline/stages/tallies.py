"""What has been decided of a deployment in a few numbers, which shuffle workers tell.

A tally is of all manifests before an offset of their log, and names the record right before it by
its checksum. Whoever believes one reads the log from some way before that offset, which says
whether it is of this log; and then knows of all that is decided later as if it had read everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from crc32c import crc32c

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, Decisions, manifest_reader
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import DECIDED_FATES


@dataclass(frozen=True, slots=True)
class Tally:
    """How many windows were decided by the manifests before an offset.

    Attributes:
        offset: in the log of manifests.
        checksum: CRC-32C of the record right before it.
        windows: how many there are, by fate.
    """

    offset: int
    checksum: int
    windows: Mapping[str, int]

    @classmethod
    def after(cls, offset: int, last: bytes, windows: Mapping[str, int]) -> Self:
        """Of what lies before an offset: the last record, and how many windows, by fate."""
        return cls(offset, crc32c(last), windows)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"offset": self.offset, "checksum": self.checksum, "windows": dict(self.windows)}

    @classmethod
    def from_json(cls, body: Any) -> Self | None:
        """Read `to_json`; None if it is something else."""
        try:
            windows = {fate.value: int(body["windows"].get(fate, 0)) for fate in DECIDED_FATES}
            tally = cls(int(body["offset"]), int(body["checksum"]), windows)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None
        return tally if min(tally.offset, *windows.values()) >= 0 else None


class TalliedDecisions:
    """A `DecisionLog`, and how many windows were decided, by fate.

    Attributes:
        log: of all that was read, or of the last `EPOCHS_AHEAD` decisions at least.
        windows: how many there are, by fate.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self.windows: Counter[str] = Counter()
        self.log = DecisionLog(job, self._note, self._note_all)

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        self.log.apply(record)

    def apply_all(self, records: Iterable[LogRecord]) -> None:
        """Take in records of the manifest log, in less time than one by one."""
        self.log.apply_all(records)

    @staticmethod
    def begins(tally: Tally) -> int:
        """Where to begin reading the log in order to believe a tally."""
        return tally.offset - 4 * EPOCHS_AHEAD

    def believe(self, tally: Tally, records: Sequence[LogRecord]) -> bool:
        """Begin with a tally, if that is of this log; else nothing is changed.

        No epoch is decided that lies more than `EPOCHS_AHEAD` beyond the oldest that is not. So
        where one is that lies twice as far beyond another, all before the middle are.

        Args:
            tally: that somebody has told.
            records: all of the log from `begins` to the offset of the tally.
        """
        if not records or records[-1].offset != tally.offset - 1:
            return False
        if crc32c(records[-1].value) != tally.checksum:
            return False
        first = self._first(records)
        if first is None:
            return False
        later = DecisionLog(self._job, self._note, self._note_all, after=first + EPOCHS_AHEAD)
        later.apply_all(records)
        self.windows.clear()
        if later.decided.highest <= first + 2 * EPOCHS_AHEAD:
            return False
        self.log, self.windows = later, Counter(tally.windows)
        return True

    def _first(self, records: Sequence[LogRecord]) -> int | None:
        job, reader = self._job, manifest_reader(self._job)
        for record in records:
            with suppress(CodecError):
                manifest = reader.decode(record.offset, record.value)
                own = (manifest.deployment, manifest.fingerprint, manifest.instance)
                if own == (job.deployment, job.fingerprint, 1):
                    return manifest.epoch
        return None

    def _note(self, decision: Decision) -> None:
        self.windows[decision.manifest.fate.value] += 1

    def _note_all(self, decisions: Decisions) -> None:
        for fate, windows in Counter(decisions.rows.fates.tolist()).items():
            self.windows[DECIDED_FATES[fate].value] += windows
