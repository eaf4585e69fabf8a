"""Starts and ends of epochs by the job's calendar, compared with the broker's clock.

Times are milliseconds since 1970. Reports for an epoch are rejected until `CLOCK_TOLERANCE` before
the epoch starts. An epoch is due when it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.values.durations import roughly
from dpstream.pipeline.values.times import EpochCalendar, iso_moment, microseconds

LAST_MOMENT = 253_402_300_799_999
"""Last millisecond of the year 9999, after which there are no epochs."""
CLOCK_TOLERANCE = 60.0
"""Tolerated clock difference in seconds; larger differences are reported as warnings."""
TOLERANCE_MS = int(1000 * CLOCK_TOLERANCE)


@dataclass(frozen=True)
class EpochSpans:
    job: Job

    @property
    def zone(self) -> str:
        return self.job.epochs.timezone or "UTC"

    def span(self, epoch: int) -> tuple[datetime | None, datetime | None]:
        return self._start(epoch), self._start(epoch + 1)

    def begins(self, epoch: int) -> str | None:
        moment = self._start(epoch)
        return None if moment is None else iso_moment(moment)

    def dated(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.job.epochs.calendar is None:
            return dict(body)
        return {"epoch": body["epoch"], "begins": self.begins(body["epoch"]), **body}

    def _start(self, epoch: int) -> datetime | None:
        calendar = self.job.epochs.calendar
        if calendar is None:
            return None
        try:
            return calendar.start_of(epoch).astimezone(ZoneInfo(self.zone))
        except OverflowError:
            return None


class EpochTimes:
    def __init__(self, calendar: EpochCalendar) -> None:
        self._calendar = calendar

    def early_by(self, epoch: int, written: int) -> float | None:
        """Return how many seconds before the start of its epoch a record was written.

        Returns None if these are at most `CLOCK_TOLERANCE`; infinity after the year 9999.
        """
        start = self.start(epoch)
        if start is None:
            return float("inf")
        return (start - written) / 1000 if written < start - TOLERANCE_MS else None

    def has_ended(self, epoch: int, now: int) -> bool:
        end = self.start(epoch + 1)
        return end is not None and end <= now

    def epoch_of(self, now: int) -> int:
        return self._calendar.epoch_of(_moment(now))

    def rejection(self, epoch: int, written: int) -> str | None:
        """Return why to reject a report written at `written`, or None if its epoch has started."""
        early = self.early_by(epoch, written)
        if early is None:
            return None
        if early == float("inf"):
            return f"epoch {epoch} is out of range: the calendar ends with the year 9999"
        start = self._calendar.start_of(epoch)
        return (
            f"epoch {epoch} starts at {start:%Y-%m-%d %H:%M:%S} UTC, {roughly(early)} ahead of the "
            f"broker's clock; expected at most {roughly(CLOCK_TOLERANCE)}"
        )

    def start(self, epoch: int) -> int | None:
        """Return the start of an epoch, milliseconds since 1970; None after the year 9999."""
        try:
            return microseconds(self._calendar.start_of(epoch)) // 1000
        except OverflowError:
            return None


def times_of(job: Job) -> EpochTimes | None:
    calendar = job.epochs.calendar
    return None if calendar is None else EpochTimes(calendar)


def _moment(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
