"""Counts of a deployment's decided windows, as published by shuffler workers.

A summary covers all manifests before an offset of their log. A reader that starts near this offset
verifies the summary by the checksum of the last manifest, and then knows all counts.
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
from dpstream.topics.manifests import MANIFEST_STATUSES, read_head


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """Number of windows decided before an offset of the manifest log, by window status.

    `checksum` is the CRC-32C of the last record before the offset.
    """

    offset: int
    checksum: int
    windows: Mapping[str, int]

    @classmethod
    def after(cls, offset: int, last: bytes, windows: Mapping[str, int]) -> Self:
        return cls(offset, crc32c(last), windows)

    def ends_with(self, record: LogRecord) -> bool:
        return (record.offset, crc32c(record.value)) == (self.offset - 1, self.checksum)

    def to_json(self) -> dict[str, Any]:
        return {"offset": self.offset, "checksum": self.checksum, "windows": dict(self.windows)}

    @classmethod
    def from_json(cls, body: Any) -> Self | None:
        try:
            windows = {
                window_status.value: int(body["windows"].get(window_status, 0))
                for window_status in MANIFEST_STATUSES
            }
            summary = cls(int(body["offset"]), int(body["checksum"]), windows)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None
        return summary if min(summary.offset, *windows.values()) >= 0 else None


class SummarizedDecisions:
    """`DecisionLog` with the number of decided windows by status.

    `counted` is True if `windows` includes those decided before the records read.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self.windows: Counter[str] = Counter()
        self.counted = True
        self.log = DecisionLog(job, self._note, self._note_all)

    def apply_all(self, records: Iterable[LogRecord]) -> None:
        self.log.apply_all(records)

    @property
    def enough(self) -> int:
        """Number of records before an offset that suffice to find the state at that offset."""
        return 4 * EPOCHS_AHEAD * self._job.partial_window_count

    def begin(
        self,
        records: Sequence[LogRecord],
        earlier: Iterable[LogRecord],
        summary: ManifestSummary | None,
    ) -> bool:
        """Start near the end of the log, or return False without any effect if that fails.

        No decided epoch is more than `EPOCHS_AHEAD` beyond the oldest undecided one. If two decided
        epochs are twice as far apart, all epochs up to halfway between them are therefore decided.

        `records` has `enough` records, and `earlier` the manifests that they refer to; see
        `dpstream.topics.short_manifests`. `summary` covers the log up to the last record. Without a
        summary, the number of windows decided earlier stays unknown.
        """
        if not records or (summary is not None and not summary.ends_with(records[-1])):
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
        self.log, self.counted = later, summary is not None
        if summary is not None:
            self.windows = Counter(summary.windows)
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
        self.windows[decision.manifest.window_status.value] += 1

    def _note_all(self, decisions: Decisions) -> None:
        for window_status, windows in Counter(decisions.rows.statuses.tolist()).items():
            self.windows[MANIFEST_STATUSES[window_status].value] += windows
