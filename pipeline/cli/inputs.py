"""What commands that read a change log share: loading it, and showing how far they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.output import tell

if TYPE_CHECKING:
    from rich.progress import Progress

    from pipeline.input.item_log import ValueLog
    from pipeline.jobs import Job


def load_input(job: Job, path: Path, skip_bad_rows: bool) -> ValueLog:
    """The change log of a job; what an operator may not expect is said."""
    from pipeline.epoch_times import calendar_of
    from pipeline.input.item_log import load_value_log

    change_log = load_value_log(
        path,
        domain=job.domain,
        calendar=calendar_of(job),
        last_epoch=job.last_epoch,
        to_last_row=job.epochs.renew,
        skip_bad_rows=skip_bad_rows,
    )
    if change_log.bad_rows.total:
        tell(str(change_log.bad_rows))
    for notice in change_log.notices:
        tell(notice)
    return change_log


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
