"""State of a job's stages, for the pipeline diagram."""

from __future__ import annotations

from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.operations.status.facts import (
    CollectorStatus,
    JobStatus,
    StageStatus,
    WorkerStatus,
)
from dpstream.pipeline.operations.status.health_rules import allowed_wait, workers_needed
from dpstream.pipeline.stages.topic_uses import hides_messages, stages_of


def pipeline_json(job: DeployedJob, status: JobStatus, now: int) -> dict[str, Any]:
    """Return the body of ``/api/jobs/J/pipeline``; `now` is in milliseconds since 1970.

    If the guarantee relies on the shuffler, counts that reveal raw messages are omitted.
    """
    # A device that reports for itself sends one report at every epoch, whatever its value is.
    hidden = job.protocol_entry.shuffling is not None and job.devices is None
    workers = [worker for stage in status.stages for worker in stage.workers if worker.up]
    windows = sorted(
        (window for worker in workers for window in worker.windows),
        key=lambda window: window.epoch,
    )
    reads = stages_of(job)
    return {
        "at": now,
        "workers_needed": workers_needed(job, status),
        "stages": [
            {"reads": reads[stage.stage]} | _stage(stage, hidden=hides_messages(job, stage.stage))
            for stage in status.stages
        ],
        "windows": [
            {
                "epoch": window.epoch,
                "reports": None if hidden else window.reports,
                "devices": window.devices,
                "waits_for": list(window.waits_for),
                "grace_left": window.grace_left,
            }
            for window in windows
        ],
        "open_windows": sum(worker.open_windows for worker in workers),
        "finalized_windows": dict(status.windows),
        "producers": status.producers,
        "missing_producers": list(status.missing_producers),
        "collectors": _collectors(job, status),
        "dead_letters": dict(status.dead_letters),
        "late_reports": status.late_reports,
        "unusable_reports": status.unusable_reports,
        "issues": list(status.issues),
        "notes": list(status.notes),
    }


def lag_seconds(job: DeployedJob, status: JobStatus) -> float:
    """Return the age in seconds of the oldest waiting record; 0 if none waits.

    If devices report for themselves, records normally wait until their window closes; a record
    counts only if it has waited longer than windows can stay open.
    """
    return max((_stage_lag_seconds(job, stage) for stage in status.stages), default=0.0)


def _stage_lag_seconds(job: DeployedJob, stage: StageStatus) -> float:
    waiting = stage.waiting or 0.0
    longest = allowed_wait(job, stage) if job.devices is not None else 0.0
    return waiting if waiting > longest else 0.0


def _collectors(job: DeployedJob, status: JobStatus) -> list[dict[str, Any]] | None:
    if job.devices is None or job.replay_of is not None:
        return None
    return [_collector(each) for each in status.collectors]


def _collector(collector: CollectorStatus) -> dict[str, Any]:
    return {
        "name": collector.collector[:8],
        "up": collector.up,
        "age": round(collector.age, 1),
        "stored": collector.acknowledged,
        "stored_per_second": collector.stored_per_second if collector.up else None,
        "waiting": collector.waiting if collector.up else None,
        "rejected": dict(collector.rejected),
    }


def _stage(stage: StageStatus, *, hidden: bool) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "workers": [_worker(worker, hidden=hidden) for worker in stage.workers],
        "lag": None if hidden else stage.lag,
        "waiting": stage.waiting,
        "epoch": stage.epoch,
        "up": any(worker.up for worker in stage.workers),
    }


def _worker(worker: WorkerStatus, *, hidden: bool) -> dict[str, Any]:
    shown = worker.up and not hidden
    return {
        "name": worker.worker,
        "up": worker.up,
        "idle": worker.up and worker.idle,
        "age": round(worker.age, 1),
        "partitions": list(worker.partitions),
        "records_per_second": worker.records_per_second if shown else None,
        "reports_per_second": worker.reports_per_second if shown else None,
    }
