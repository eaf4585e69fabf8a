"""Print the status of a job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rich.console import RenderableType
from rich.text import Text

from dpstream.pipeline.cli.output import duration, instant, number, table_of
from dpstream.pipeline.operations.status.facts import (
    JobStatus,
    OpenWindowStatus,
    StageStatus,
    WorkerStatus,
)


def status_lines(
    status: JobStatus, moment: int, *, current: bool = True
) -> Iterator[RenderableType]:
    """Yield the status of a job at a `moment`, in milliseconds since 1970.

    "no issues" is shown only if the status is `current` and the latest epoch has an estimate.
    """
    age = duration((moment - status.deployed_at) / 1000)
    phase = f", {status.phase}" + (f", a replay of {status.replay_of}" if status.replay_of else "")
    yield Text(status.job + phase, "bold")
    yield Text(
        f"deployment {status.deployment[:8]}, since {instant(status.deployed_at)} ({age} ago)"
    )
    yield Text(_publication(status, moment))
    if status.assumption is not None and status.published is not None:
        yield Text(f"95 % interval: {status.assumption}")
    if status.rolling is not None:
        yield Text(f"guarantee: {status.rolling}")
    counted = ", ".join(
        f"{count:,} {window_status}" for window_status, count in status.windows.items()
    )
    if not status.windows:
        counted = "not counted: no shuffle worker has reported counts"
    yield Text(f"windows: {counted}{_who_reports(status)}")
    yield Text()
    yield table_of(
        ["stage", ">epoch", "worker", "heard", "partitions", ">reports/s", ">lag", ">oldest"],
        chain.from_iterable(map(_stage_rows, status.stages)),
    )
    yield from _window_lines(status)
    if status.collectors:
        yield Text()
        yield table_of(
            {
                "collector": lambda each: each.collector[:8],
                "heard": lambda each: (
                    f"{duration(each.age)} ago" if each.up else f"silent {duration(each.age)}"
                ),
                ">stored/s": lambda each: each.stored_per_second if each.up else None,
                ">stored": "acknowledged",
                ">waiting": lambda each: each.waiting if each.up else None,
                "rejected requests": lambda each: (
                    ", ".join(f"{count:,} {reason}" for reason, count in each.rejected.items())
                    or "none"
                ),
            },
            status.collectors,
        )
    if status.dead_letters or status.redriven or status.discarded:
        listed = [f"{count:,} {reason}" for reason, count in status.dead_letters.items()]
        settled = {"requeued": status.redriven, "discarded": status.discarded}
        listed += [f"{count:,} {how}" for how, count in settled.items() if count]
        yield Text()
        yield Text(f"dead letters: {', '.join(listed)}")
    yield Text()
    for note in status.notes:
        yield Text(f"note: {note}")
    for issue in status.issues:
        yield Text(f"issue: {issue}", "bold red")
    estimated = status.published is None or status.published.estimate is not None
    if current and estimated and not status.issues:
        yield Text("no issues", "green")


def _who_reports(status: JobStatus) -> str:
    if status.producers is not None:
        return f"; producers: {status.producers:,}"
    if status.replay_of is not None:
        return ""
    up = sum(collector.up for collector in status.collectors)
    return f"; collectors: {up:,}"


def _publication(status: JobStatus, moment: int) -> str:
    record = status.published
    if record is None:
        last = status.last_epoch
        none = "no epoch" if last is None else f"none of the {last:,} epochs"
        return f"{none} is published yet"
    age = duration(max(0, moment - record.closed_at) / 1000)
    unpublished = record.headline is None or record.headline.value is None
    window_status = f"{record.window_status}, " if unpublished else ""
    return f"{status.position}, closed {age} ago: {window_status}{status.headline}"


def _stage_rows(stage: StageStatus) -> Iterator[tuple[str, ...]]:
    first = stage.stage, number(stage.epoch)
    oldest = "-" if stage.waiting is None else duration(stage.waiting)
    last = number(stage.lag), oldest
    if not stage.workers:
        yield *first, "none", "-", "-", "-", *last
    for worker in stage.workers:
        yield (
            *first,
            worker.worker,
            _heartbeat_age(worker),
            " ".join(map(str, worker.partitions)) or "-",
            number(worker.reports_per_second) if worker.up else "-",
            *last,
        )
        first, last = ("", ""), ("", "")


def _heartbeat_age(worker: WorkerStatus) -> str:
    if not worker.up:
        return f"gone {duration(worker.age)}"
    return "idle" if worker.idle else f"{duration(worker.age)} ago"


def _window_lines(status: JobStatus) -> Iterator[RenderableType]:
    workers = [worker for stage in status.stages for worker in stage.workers if worker.up]
    windows = sorted(
        (window for worker in workers for window in worker.windows),
        key=lambda window: window.epoch,
    )
    if not windows:
        return
    counted = "devices" if windows[0].reports is None else "reports"
    yield Text()
    yield table_of(
        {
            "open window": lambda window: (
                f"epoch {window.epoch:,}" + (f" ({window.begins})" if window.begins else "")
            ),
            f">{counted} so far": lambda window: (
                window.devices if window.reports is None else window.reports
            ),
            "waits for": lambda window: _awaited(window, collected=status.producers is None),
            ">at most": lambda window: (
                "its time" if window.grace_left is None else duration(window.grace_left)
            ),
        },
        windows,
    )
    more = sum(worker.open_windows for worker in workers if worker.windows) - len(windows)
    if more > 0:
        yield Text(f"and {more:,} more")


def _awaited(window: OpenWindowStatus, *, collected: bool) -> str:
    if collected and window.grace_left is None:
        # Until the epoch ends, collectors accept its reports; the window waits for no collector.
        return "the end of the epoch"
    if collected:
        return ", ".join(window.waits_for) or "the end of its grace period"
    return ", ".join(window.waits_for) or "producers that may still register"
