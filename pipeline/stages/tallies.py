"""What has been decided of a deployment in a few numbers, which shuffle workers tell.

A tally is of all manifests before an offset of their log, and names the record right before it by
its checksum. A reader that begins some way before that offset sees whether it is of this log, and
then knows as much as if it had read everything. Without a tally, the end of the log says as much,
except for how many windows were decided before it.
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
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, Decisions
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import DECIDED_FATES, read_head


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

    def ends_with(self, record: LogRecord) -> bool:
        """Whether a record is the last one before the offset."""
        return (record.offset, crc32c(record.value)) == (self.offset - 1, self.checksum)

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
        windows: how many there are, by fate; of those that were read if not `counted`.
        counted: whether those before them are counted, too.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self.windows: Counter[str] = Counter()
        self.counted = True
        self.log = DecisionLog(job, self._note, self._note_all)

    def apply_all(self, records: Iterable[LogRecord]) -> None:
        """Take in records of the manifest log, in less time than one by one."""
        self.log.apply_all(records)

    @property
    def enough(self) -> int:
        """How many records right before an offset say what was decided up to there."""
        return 4 * EPOCHS_AHEAD * self._job.window_parts

    def begin(
        self, records: Sequence[LogRecord], earlier: Iterable[LogRecord], tally: Tally | None
    ) -> bool:
        """Begin near the end of the log, if that says enough; else nothing is changed.

        No epoch is decided that lies more than `EPOCHS_AHEAD` beyond the oldest that is not. So
        where one is that lies twice as far beyond another, all before the middle are.

        Args:
            records: `enough` of the log.
            earlier: manifests that these name; see `dpstream.topics.short_manifests`.
            tally: of all up to the last of them, which must be of this log; None: how many windows
                were decided before them is not known.
        """
        if not records or (tally is not None and not tally.ends_with(records[-1])):
            return False
        first = self._first(records)
        if first is None:
            return False
        later = DecisionLog(self._job, self._note, self._note_all, after=first + EPOCHS_AHEAD)
        for record in earlier:
            with suppress(CodecError):
                later.recall(record)
        before, self.windows = self.windows, Counter()
        later.apply_all(records)
        if later.decided.highest <= first + 2 * EPOCHS_AHEAD:
            self.windows = before
            return False
        self.log, self.counted = later, tally is not None
        if tally is not None:
            self.windows = Counter(tally.windows)
        return True

    def _first(self, records: Sequence[LogRecord]) -> int | None:
        own = self._job.deployment, self._job.fingerprint, 1
        for record in records:
            with suppress(CodecError):
                head = read_head(record.value)
                if (head.deployment, head.fingerprint, head.instance) == own:
                    return head.epoch
        return None

    def _note(self, decision: Decision) -> None:
        self.windows[decision.manifest.fate.value] += 1

    def _note_all(self, decisions: Decisions) -> None:
        for fate, windows in Counter(decisions.rows.fates.tolist()).items():
            self.windows[DECIDED_FATES[fate].value] += windows
