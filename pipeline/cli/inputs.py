"""What commands that read an input share: its options, loading it, showing how far they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.cli.output import tell
from pipeline.devices.item_log import ValueLog, load_value_log
from pipeline.devices.produce import input_notices
from pipeline.devices.produce import load_input as load
from pipeline.devices.users import load_users
from pipeline.jobs.epoch_times import calendar_of
from pipeline.jobs.input_forms import InputForm
from pipeline.jobs.job_files import Job

Roster = Annotated[
    Path | None,
    typer.Option(
        "--users",
        metavar="FILE",
        help="Who there is, which is public: one user a line, or a CSV with a column user, plain "
        "or gzip. Rows of others are not used. Default: whoever has a row.",
    ),
]
ToEpoch = Annotated[
    int | None,
    typer.Option(
        "--to-epoch",
        metavar="EPOCH",
        help="The input is complete up to this epoch; values hold until then. Default: the job's "
        "last. Needed for a job that renews.",
    ),
]


def load_roster(path: Path | None) -> tuple[str, ...] | None:
    """The users of a roster, if there is one."""
    return None if path is None else load_users(path)


def load_input(
    job: Job,
    path: Path,
    users: Path | None = None,
    to_epoch: int | None = None,
    *,
    skip_bad_rows: bool,
    form: InputForm | None = None,
) -> ValueLog:
    """The input of a job, as it is produced; what an operator may not expect is said."""
    log = load(
        job,
        path,
        users=load_roster(users),
        to_epoch=to_epoch,
        skip_bad_rows=skip_bad_rows,
        form=form,
    )
    for notice in input_notices(log):
        tell(notice)
    return log


def load_truth(job: Job, path: Path) -> ValueLog:
    """The input of a job, for whoever may see what it says: up to its last row."""
    log = load_value_log(
        path,
        domain=job.domain,
        calendar=calendar_of(job),
        last_epoch=job.last_epoch,
        to_last_row=job.epochs.renew,
        form=job.input_form,
    )
    for notice in log.notices:
        tell(notice)
    return log


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on standard error, if that is a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as progress:
        yield progress
