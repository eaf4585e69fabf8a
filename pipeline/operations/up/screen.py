"""Show running jobs: lines of text and, on a terminal, a progress bar for each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE, Row

_LINES_PER_RUN = 17


@dataclass(frozen=True, slots=True)
class ScreenState:
    job: Job
    activity: str
    rows: Sequence[Row]
    last_epoch: int


class Screen:
    def __init__(self, console: Console) -> None:
        self._console = console
        columns = TextColumn("{task.description}", markup=False), BarColumn()
        live = console.is_terminal and not console.is_dumb_terminal
        self._bars = Progress(*columns, console=console, disable=not live)
        self._tasks: dict[int, TaskID] = {}
        self._activity: dict[int, str] = {}
        self._shown: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def print_message(self, sentence: str) -> None:
        self._console.print(Text(sentence), soft_wrap=True)

    def show(self, *views: ScreenState) -> None:
        for number, view in enumerate(views):
            name = f"{view.job.name}: " if len(views) > 1 else ""
            # "fetching: 3 of 40" is the same activity as "fetching: 2 of 40".
            activity = view.activity.partition(":")[0]
            if activity and activity != self._activity.get(number):
                self._activity[number] = activity
                self.print_message(name + view.activity)
            for row in self._due(number, view):
                self.print_message(name + line_of(row, view.job))
            done = view.rows[-1].epoch if view.rows else 0
            if number not in self._tasks:
                self._tasks[number] = self._bars.add_task("", total=view.last_epoch)
            said = f"{view.job.name}  {view.job.position_of(done, view.last_epoch)}"
            self._bars.update(self._tasks[number], completed=done, description=said)

    def _due(self, number: int, view: ScreenState) -> Iterator[Row]:
        every = max(1, round(view.last_epoch / _LINES_PER_RUN))
        new = view.rows[self._shown[number] :]
        self._shown[number] += len(new)
        for row in new:
            if row.epoch % every == 0 or row.epoch == view.last_epoch:
                yield row


def line_of(row: Row, job: Job) -> str:
    headline, calendar = row.headline, job.epochs.calendar
    measure = "estimate" if headline.numbers is None else "median"
    ground_truth = (
        ""
        if row.ground_truths is None
        else f"ground truth ({NOT_PRIVATE}) {headline.shown(headline.ground_truth)}"
    )
    cells = (
        f"epoch {row.epoch}",
        "" if calendar is None else calendar.shown(row.epoch),
        f"{measure} {headline.shown(headline.value)}",
        f"95 % {headline.interval}",
        ground_truth,
        f"{job.people} {row.record.contributors:,}",
        ", ".join(row.notes),
    )
    return "  ".join(filter(None, cells))
