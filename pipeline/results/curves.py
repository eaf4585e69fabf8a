"""The plot of several answers over the epochs: a curve with its 95 % band for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.results.phrases import capital
from dpstream.pipeline.results.questions import Query, Question
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 10

GAPS = "reports missing, no coverage claimed"
_GAP_COLOUR = "#D55E00"

# Paul Tol's muted colours, which the colour-blind can tell apart, and black.
_COLOURS = (
    *("#332288", "#CC6677", "#117733", "#88CCEE", "#882255"),
    *("#999933", "#AA4499", "#44AA99", "#DDCC77", "#000000"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One answer over the epochs; not a number where there is none.

    Attributes:
        name: of the item, range or quantile.
        values: float64, shape (epochs,).
        lows: the same, of the 95 % intervals.
        highs: the same.
        truth: the same, where it is known.
    """

    name: str
    values: NDArray[np.float64]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    truth: NDArray[np.float64] | None = None


def plotted_query(
    domain: ValueDomain, query: Query | None, records: Sequence[EstimateRecord]
) -> Query:
    """What is drawn of a query, at most `MOST_CURVES`; without one, what shows best.

    The largest items differ from epoch to epoch: drawn are those with the largest mean.
    """
    if query is None:
        return Query(domain, kind_of(domain).overview(records, MOST_CURVES))
    return Query(domain, query.question.steady(records, MOST_CURVES))


def curves_of(
    query: Query,
    records: Sequence[EstimateRecord],
    truth: NDArray[np.int64] | Mapping[int, NDArray[np.int64] | None] | None = None,
) -> list[Curve]:
    """The curves of a query.

    Args:
        query: from `plotted_query`.
        records: of all epochs to be drawn.
        truth: of every estimate, shape (estimates,), by epoch, where it is known.
    """
    found = [
        query.answers(record.estimate, None if truth is None else truth[record.epoch])
        for record in records
    ]
    names = list(dict.fromkeys(answer.name for answers in found for answer in answers))
    places = {name: place for place, name in enumerate(names)}
    # (curve, column, epoch)
    columns = np.full((len(names), 4, len(records)), np.nan)
    for at, answers in enumerate(found):
        for answer in answers:
            curve = places[answer.name]
            columns[curve, :3, at] = answer.value, answer.low, answer.high
            if answer.truth is not None:
                columns[curve, 3, at] = answer.truth
    return [
        Curve(name, column[0], column[1], column[2], None if truth is None else column[3])
        for name, column in zip(names, columns, strict=True)
    ]


def write_curves(
    path: Path,
    job: DeployedJob,
    question: Question,
    epochs: Sequence[int],
    curves: Sequence[Curve],
) -> None:
    """Draw curves into a PNG file; see `draw_curves`."""
    save_figure(draw_curves(job, question, epochs, curves), path)


def draw_curves(
    job: DeployedJob,
    question: Question,
    epochs: Sequence[int],
    curves: Sequence[Curve],
    gaps: Sequence[int] = (),
) -> Figure:
    """Draw curves with their bands; the truth, where it is known, is dashed.

    Args:
        job: named in the title, and places the epochs in time.
        question: that they answer, in values or numbers of users.
        epochs: shape (epochs,), of the curves.
        curves: at most `MOST_CURVES`.
        gaps: epochs to be marked as gaps.

    Raises:
        PlotError: matplotlib is missing.
    """
    figure = new_figure(10, 5.6)
    axes = figure.add_subplot()
    at = positions(job, epochs)
    for curve, colour in zip(curves, _COLOURS, strict=False):
        axes.fill_between(at, curve.lows, curve.highs, color=colour, alpha=0.2, linewidth=0)
        axes.plot(at, curve.values, color=colour, linewidth=1.6, label=job.reads(curve.name))
        if curve.truth is not None:
            axes.plot(at, curve.truth, color=colour, linewidth=1.2, linestyle=(0, (5, 2)))
    bands = "bands: 95 % intervals, each on its own"
    if any(curve.truth is not None for curve in curves):
        bands += "; dashed: the truth, which is not private"
    if gaps:
        bands += f"\nmarks at the foot: {GAPS}"
    axes.set_title("\n".join((*title_lines(job), bands)), loc="left", fontsize=11)
    name_time_axis(axes, job)
    axes.set_ylabel("value" if question.in_values else job.people)
    axes.yaxis.set_major_formatter("{x:.10g}" if question.in_values else "{x:,.0f}")
    axes.margins(x=0.01)
    tidy(axes)
    if curves:
        axes.legend(
            title=question.kind, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
        )
    mark_gaps(axes, positions(job, gaps))
    return figure


def title_lines(job: DeployedJob) -> Iterator[str]:
    """Yield the job's title, its guarantee and what its intervals assume."""
    yield job.title or job.name
    yield str(job.guarantee).partition(";")[0]
    if job.change_limit is not None:
        yield capital(str(job.change_limit))


def mark_gaps(axes: Axes, at: NDArray[np.generic]) -> None:
    """Mark epochs that are flagged as gaps at the foot of a plot; their positions are given."""
    if len(at):
        axes.plot(
            at,
            np.zeros(len(at)),
            "|",
            color=_GAP_COLOUR,
            transform=axes.get_xaxis_transform(),
            label=GAPS,
        )


def name_time_axis(axes: Axes, job: Job) -> None:
    """Say what the axis of epochs is; dates on it are those of the job's time zone."""
    calendar = job.epochs.calendar
    if calendar is None:
        axes.set_xlabel("epoch")
        return
    # In UTC nothing stands still or goes back when clocks do; the ticks are those of the clocks.
    axes.xaxis_date(calendar.zone)
    axes.set_xlabel(f"{period(job)} ({'UTC' if calendar.zone is None else calendar.zone.key})")


def positions(job: Job, epochs: Sequence[int]) -> NDArray[np.generic]:
    """Where epochs stand on the axis: at their number, or when they begin, in UTC."""
    calendar = job.epochs.calendar
    if calendar is None:
        return np.array(epochs)
    starts = [calendar.start_of(epoch).replace(tzinfo=None) for epoch in epochs]
    return np.array(starts, dtype="datetime64[us]")
