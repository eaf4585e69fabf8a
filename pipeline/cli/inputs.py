"""Options, loading and progress bars of commands that read an input."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from dpstream.pipeline.cli.output import tell
from dpstream.pipeline.devices.item_log import ValueLog, load_job_log
from dpstream.pipeline.devices.producer_input import input_warnings
from dpstream.pipeline.devices.producer_input import load_input as load
from dpstream.pipeline.devices.users import load_job_users
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.jobs.job_files import Job

UserList = Annotated[
    Path | None,
    typer.Option(
        "--users",
        metavar="FILE",
        help="File with all enrolled users, a public list: one user per line, or a CSV with a "
        "column user and those of public attributes, plain or gzip. Rows of other users are "
        "ignored. Default: all users with a row in the input.",
    ),
]
ToEpoch = Annotated[
    int | None,
    typer.Option(
        "--to-epoch",
        metavar="EPOCH",
        help="Last epoch of the input; values persist until then. Required for recurring jobs. "
        "Default: the job's last.",
    ),
]


def load_user_list(job: Job, path: Path | None) -> Collection[str] | None:
    return None if path is None else load_job_users(job, path)


def load_input(
    job: Job,
    path: Path,
    users: Path | None = None,
    to_epoch: int | None = None,
    *,
    skip_bad_rows: bool,
    input_format: InputFormat | None = None,
) -> ValueLog:
    log = load(
        job,
        path,
        users=load_user_list(job, users),
        to_epoch=to_epoch,
        skip_bad_rows=skip_bad_rows,
        input_format=input_format,
    )
    for warning in input_warnings(log):
        tell(warning)
    return log


def load_ground_truth(
    job: Job, path: Path, users: Path | None = None, *, skip_bad_rows: bool = False
) -> ValueLog:
    log = load_job_log(
        job,
        path,
        last_epoch=job.last_epoch,
        to_last_row=job.epochs.renew,
        skip_bad_rows=skip_bad_rows,
        users=load_user_list(job, users),
    )
    for warning in log.warnings:
        tell(warning)
    return log


@contextmanager
def progress_bar() -> Iterator[Progress]:
    with _progress(MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        yield progress


@contextmanager
def progress_to_go() -> Iterator[Progress]:
    with _progress(TimeElapsedColumn(), TimeToGo()) as progress:
        yield progress


def _progress(*columns: ProgressColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


class TimeToGo(ProgressColumn):
    def __init__(self) -> None:
        super().__init__()
        self._done, self._at = 0.0, 0.0

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        if task.completed != self._done:
            self._done, self._at = task.completed, elapsed
        if not self._done or not task.total:
            return Text("")
        left = max(0.0, self._at * task.total / self._done - elapsed)
        return Text(f"about {timedelta(seconds=round(left))} remaining")
