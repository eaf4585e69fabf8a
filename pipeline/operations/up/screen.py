"""What is shown while a job runs: a live table on a terminal, lines everywhere else."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE
from dpstream.pipeline.operations.up.progress import Progress, Row
from dpstream.pipeline.results.kinds.headline import Headline

# Lines around the rows of the table.
_LINES_AROUND = 9
_ROWS_AT_MOST = 24
# Columns of the table beside the picture, with numbers in the millions and a note.
_COLUMNS_BESIDE = 88
_PICTURE_WIDTHS = range(10, 41)
_LINES_PER_RUN = 17
_REDRAW_SECONDS = 0.15

_MARKS = {
    "starting": ("○", "yellow"),
    "running": ("●", "green"),
    "restarting": ("●", "red"),
    "finished": ("✓", "green"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A process: its name, its state (a key of `_MARKS`) and a few words about what it does."""

    name: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ScreenState:
    """All there is to show at a moment.

    Attributes:
        title: the job, and what it promises.
        activity: what is being done.
        parts: the processes.
        population: of the input; the scale of the picture.
        progress: what has been published; None before the job is deployed.
    """

    title: str
    activity: str
    parts: tuple[Part, ...]
    population: int
    progress: Progress | None

    @property
    def name(self) -> str:
        """The job's name, with which the title begins."""
        return self.title.partition(" ")[0]


class Screen(ABC):
    """Where a run is shown.

    Args:
        console: any output; a terminal for what changes in place.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - lines stand anyway
        """Leave the last picture standing."""

    @abstractmethod
    def say(self, sentence: str) -> None:
        """Tell something that shall stay to be read."""

    @abstractmethod
    def show(self, *views: ScreenState) -> None:
        """Show the present state of every job; called many times a second."""


class LiveScreen(Screen):
    """A table that changes in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._activity: list[str] = []
        self._views: tuple[ScreenState, ...] = ()
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        """See `Screen`."""
        self._draw()
        self._live.stop()

    def say(self, sentence: str) -> None:
        """Print above the table."""
        self._console.print(Text(sentence, "yellow"))

    def show(self, *views: ScreenState) -> None:
        """Draw the tables anew, unless they have just been drawn."""
        self._views = views
        now, activity = time.monotonic(), [view.activity for view in views]
        if now >= self._drawn_at + _REDRAW_SECONDS or activity != self._activity:
            self._drawn_at, self._activity = now, activity
            self._draw()

    def _draw(self) -> None:
        if self._views:
            self._live.update(render_all(self._views, *self._console.size), refresh=True)


class LineScreen(Screen):
    """A line for what begins, and for every so many epochs."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._activity: dict[int, str] = {}
        self._shown: Counter[int] = Counter()

    def say(self, sentence: str) -> None:
        """Print a line."""
        self._console.print(Text(sentence), soft_wrap=True)

    def show(self, *views: ScreenState) -> None:
        """Print what is new and due."""
        for number, view in enumerate(views):
            name = f"{view.name}: " if len(views) > 1 else ""
            # "fetching: 3 of 40" is the same activity as "fetching: 2 of 40".
            activity = view.activity.partition(":")[0]
            if activity and activity != self._activity.get(number):
                self._activity[number] = activity
                self.say(name + view.activity)
            for row in self._due(number, view.progress):
                assert view.progress is not None
                self.say(name + line_of(row, view.progress.job))

    def _due(self, number: int, progress: Progress | None) -> Iterator[Row]:
        if progress is None:
            return
        every = max(1, round(progress.last_epoch / _LINES_PER_RUN))
        published = len(progress.records)
        new = progress.rows(last=published - self._shown[number])
        self._shown[number] = published
        for row in new:
            if row.epoch % every == 0 or row.epoch == progress.last_epoch:
                yield row


def line_of(row: Row, job: Job | None = None) -> str:
    """An epoch in one line; with its date, where the job's calendar has one."""
    headline = row.headline
    begins = "" if job is None else _begins(job, row.epoch)
    return "  ".join(
        filter(
            None,
            (
                f"epoch {row.epoch}",
                begins,
                f"{_measure(headline)} {headline.shown(headline.value)}",
                f"95 % {headline.interval}",
                ""
                if row.truths is None
                else f"truth ({NOT_PRIVATE}) {headline.shown(headline.truth)}",
                f"reports {_number(row.reports)}",
                f"reports/s {_number(row.rate)}",
                ", ".join(row.notes),
            ),
        )
    )


def render_all(views: Sequence[ScreenState], width: int, height: int) -> RenderableType:
    """The pictures of several jobs, one below the other."""
    share = height // len(views)
    pictures: list[RenderableType] = []
    for view in views:
        pictures += [Text("")] * bool(pictures) + [render(view, width, share)]
    return Group(*pictures)


def render(view: ScreenState, width: int, height: int) -> RenderableType:
    """The picture of a view on a terminal of so many columns and lines."""
    lines: list[RenderableType] = [Text(view.title, "bold", no_wrap=True, overflow="ellipsis")]
    if view.parts:
        lines.append(_parts_line(view.parts))
    progress = view.progress
    if progress is None or not progress.records:
        lines.append(Text(view.activity, "yellow"))
        return Group(*lines)
    rows = progress.rows(last=max(3, min(_ROWS_AT_MOST, height - _LINES_AROUND)))
    done, total = progress.records[-1].epoch, progress.last_epoch
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(progress.job.position_of(done, total)),
        ProgressBar(total=total, completed=done, width=min(40, width - 40)),
        Text(view.activity, "yellow"),
    )
    picture_width = min(width - _COLUMNS_BESIDE, _PICTURE_WIDTHS[-1])
    lines += [
        Text(""),
        _table(rows, view.population, picture_width, progress.job),
        Text(""),
        bar,
    ]
    if _beside_truth(rows):
        lines.append(Text(f"* {NOT_PRIVATE}; taken from the input, sent nowhere", "dim"))
    return Group(*lines)


def picture(headline: Headline, population: int, width: int) -> Text:
    """Interval, estimate and truth on a line of `width` cells, over all that they can be."""
    start, end = _ends(headline, population)
    low, value, high, truth = (
        None if number is None else (number - start) / (end - start)
        for number in (headline.low, headline.value, headline.high, headline.truth)
    )
    text = Text(draw(low=low, value=value, high=high, truth=truth, scale=1, width=width))
    text.highlight_regex("[├─┤]", "cyan")
    text.highlight_regex("●", "bold blue")
    return text


def draw(
    *,
    low: float | None,
    value: float | None,
    high: float | None,
    truth: float | None,
    scale: float,
    width: int,
) -> str:
    """The cells of `picture`; what lies outside is drawn at the edge.

    >>> draw(low=0, value=3, high=6, truth=8, scale=10, width=11)
    '├──●──┤ ┊  '
    """

    def cell(number: float) -> int:
        return min(max(round(number / max(scale, 1) * (width - 1)), 0), width - 1)

    cells = [" "] * width
    if low is not None and high is not None:
        first, last = cell(low), cell(high)
        cells[first : last + 1] = "─" * (last - first + 1)
        cells[first], cells[last] = "├", "┤"
    if truth is not None:
        cells[cell(truth)] = "┊"
    if value is not None:
        cells[cell(value)] = "●"
    return "".join(cells)


def _parts_line(parts: Sequence[Part]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, part in enumerate(parts):
        mark, style = _MARKS[part.state]
        said = part.detail or ("" if part.state == "running" else part.state)
        # Four that have finished fit 80 columns.
        line.append("  " * bool(place)).append(f"{mark} ", style).append(part.name)
        line.append(f" {said}".rstrip(), "dim")
    return line


def _begins(job: Job, epoch: int) -> str:
    calendar = job.epochs.calendar
    return "" if calendar is None else calendar.shown(epoch)


def _table(rows: Sequence[Row], population: int, picture_width: int, job: Job) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headlines = [row.headline for row in rows]
    measure = _measure(headlines[0])
    truth = ["truth*"] * _beside_truth(rows)
    dates = [_begins(job, row.epoch) for row in rows]
    first = period(job) if any(dates) else "epoch"
    for name in (first, measure, "95 % interval", *truth, "reports", "reports/s"):
        table.add_column(name, justify="right", no_wrap=True)
    has_picture = picture_width in _PICTURE_WIDTHS
    if has_picture:
        start, end = (f"{end:,.12g}" for end in _ends(headlines[0], population))
        table.add_column(start + end.rjust(picture_width - len(start)), no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, headline, date in zip(rows, headlines, dates, strict=True):
        cells = [
            Text(date or str(row.epoch)),
            Text(headline.shown(headline.value), "bold"),
            Text(headline.interval),
            *[Text(headline.shown(headline.truth))] * len(truth),
            Text(_number(row.reports)),
            Text(_number(row.rate)),
        ]
        if has_picture:
            cells.append(picture(headline, population, picture_width))
        table.add_row(*cells, Text(", ".join(row.notes), "red"))
    return table


def _beside_truth(rows: Sequence[Row]) -> bool:
    return any(row.truths is not None for row in rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _measure(headline: Headline) -> str:
    if headline.percent:
        return headline.name
    return "estimate" if headline.numbers is None else "median"


def _ends(headline: Headline, population: int) -> tuple[float, float]:
    """Between which values a headline lies."""
    numbers = headline.numbers
    if headline.percent:
        return 0, 100
    return (0, max(population, 1)) if numbers is None else (numbers.low, numbers.high)
