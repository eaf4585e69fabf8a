"""Read the latest heartbeats in ``<job>.status``, with times by the broker's clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.operations.status.facts import (
    CollectorStatus,
    OpenWindowStatus,
    WorkerStatus,
)
from dpstream.pipeline.stages.device_decision import COLLECT
from dpstream.pipeline.stages.manifest_summaries import ManifestSummary

# Age in seconds of the last heartbeat after which a worker is no longer listed.
LISTED_SECONDS = 86_400.0
_REJECTED = "rejected "
_OTHER_WORDS = (AttributeError, KeyError, TypeError, ValueError, OverflowError)


class Heartbeats:
    """The last two heartbeats of every worker; `newest` is the latest timestamp or None."""

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._deployment = job.deployment.hex()
        self._last: dict[bytes, list[_Beat]] = {}
        self._summaries: dict[bytes, ManifestSummary] = {}
        self.newest: int | None = None

    def apply(self, record: LogRecord) -> None:
        try:
            body = json.loads(record.value)
        except (ValueError, RecursionError):
            return
        self.newest = max(record.timestamp, self.newest or 0)
        own = isinstance(body, dict) and body.get("deployment") in (None, self._deployment)
        if not own or not record.key:
            return
        summary = ManifestSummary.from_json(body.get("finalized"))
        if summary is not None:
            # The heartbeat of a stopped worker also contains it.
            self._summaries[record.key] = summary
        if body.get("stopped"):
            self._last.pop(record.key, None)
        else:
            self._last[record.key] = [
                *self._last.get(record.key, [])[-1:],
                _Beat(record.timestamp, body),
            ]

    @property
    def summary(self) -> ManifestSummary | None:
        return max(self._summaries.values(), key=lambda summary: summary.offset, default=None)

    def workers(self, now: int) -> Iterator[WorkerStatus]:
        for beats in self._last.values():
            # Heartbeats of another version might have other fields.
            try:
                worker = _worker(self._job, beats, now)
            except _OTHER_WORDS:
                continue
            if worker.age <= LISTED_SECONDS and worker.stage != COLLECT:
                yield worker

    def collectors(self, now: int) -> Iterator[CollectorStatus]:
        for beats in self._last.values():
            try:
                collector = _collector(beats, now)
            except _OTHER_WORDS:
                continue
            if collector is not None and collector.age <= LISTED_SECONDS:
                yield collector


class _Beat(NamedTuple):
    written: int
    body: Mapping[str, Any]


def _collector(beats: Sequence[_Beat], now: int) -> CollectorStatus | None:
    written, body = beats[-1]
    if body["stage"] != COLLECT:
        return None
    counts: Mapping[str, int] = body["counts"]
    return CollectorStatus(
        collector=body["worker"],
        age=max(0, now - written) / 1000,
        received=int(counts["received"]),
        acknowledged=int(counts["reports"]),
        rejected={
            key.removeprefix(_REJECTED): int(count)
            for key, count in counts.items()
            if key.startswith(_REJECTED)
        },
        waiting=int(body["waiting"]),
        stored_per_second=_reports_per_second(beats),
    )


def _worker(job: DeployedJob, beats: Sequence[_Beat], now: int) -> WorkerStatus:
    written, beat = beats[-1]
    age = max(0, now - written) / 1000
    rate = beat.get("records_per_second")
    return WorkerStatus(
        stage=beat["stage"],
        worker=beat["worker"],
        age=age,
        partitions=tuple(beat["partitions"]),
        records_per_second=rate,
        reports_per_second=_reports_per_second(beats),
        windows=tuple(_window(job, window, age) for window in beat.get("windows", ())),
        open_windows=beat.get("open_windows", 0),
        late_reports=beat.get("counts", {}).get("late_reports", 0),
        busy=bool(beat.get("busy", rate)),
        clock_ahead=None if (ahead := beat.get("clock_ahead")) is None else float(ahead),
        ahead={each["producer"]: int(each["epochs"]) for each in beat.get("ahead", ())},
        unusable_reports=int(beat.get("counts", {}).get("unusable_reports", 0)),
        contradicting_reports=int(beat.get("counts", {}).get("contradicting_reports", 0)),
        idle=beat.get("idle") is True,
    )


def _window(job: DeployedJob, window: Mapping[str, Any], age: float) -> OpenWindowStatus:
    left, calendar = window.get("grace_left"), job.epochs.calendar
    return OpenWindowStatus(
        epoch=window["epoch"],
        reports=window.get("reports"),
        waits_for=tuple(window["waits_for"]),
        devices=window.get("devices"),
        begins=None if calendar is None else calendar.shown(window["epoch"]),
        grace_left=None if left is None else max(0.0, round(left - age, 1)),
    )


def _reports_per_second(beats: Sequence[_Beat]) -> float | None:
    counts = [beat.body.get("counts", {}).get("reports") for beat in beats]
    if len(beats) < 2 or None in counts or counts[1] < counts[0]:
        return None
    elapsed = (beats[1].written - beats[0].written) / 1000
    return round((counts[1] - counts[0]) / elapsed, 1) if elapsed > 0 else None
