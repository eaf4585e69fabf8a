"""Plot answers over epochs, each as a curve with its 95 % confidence band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.results.counts_queries import CountsQuery, Query
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.phrases import capital
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import ValueDomain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CURVES = 10
DASHED = (0, (5, 2))

# Paul Tol's muted colors, distinguishable by color-blind readers, and black.
_COLORS = (
    *("#332288", "#CC6677", "#117733", "#88CCEE", "#882255"),
    *("#999933", "#AA4499", "#44AA99", "#DDCC77", "#000000"),
)
_VERMILION = "#D55E00"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One answer over epochs; NaN at epochs without an estimate.

    All arrays are float64, shape (epochs,); `lows` and `highs` are the ends of the 95 % intervals.
    """

    name: str
    values: NDArray[np.float64]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    ground_truth: NDArray[np.float64] | None = None

    def draw(
        self,
        axes: Axes,
        at: NDArray[np.generic],
        color: str,
        name: str,
        less: float | NDArray[np.float64] = 0.0,
    ) -> None:
        band = self.lows - less, self.highs - less
        axes.fill_between(at, *band, color=color, alpha=0.2, linewidth=0)
        axes.plot(at, self.values - less, color=color, linewidth=1.6, label=name)


def plotted_query(
    domain: ValueDomain, query: Query | None, records: Sequence[EstimateRecord]
) -> Query:
    """Return a query for at most `MOST_CURVES` curves, by default the most informative curves.

    The largest items differ between epochs, so the items with the largest means are drawn.
    """
    if query is None:
        return Query(domain, kind_of(domain).overview(records, MOST_CURVES))
    return Query(domain, query.counts_query.steady(records, MOST_CURVES))


def curves_of(
    query: Query,
    records: Sequence[EstimateRecord],
    ground_truth: NDArray[np.int64] | Mapping[int, NDArray[np.int64] | None] | None = None,
) -> list[Curve]:
    """Return the curves of a query from `plotted_query`.

    `ground_truth`, if known, has the true value for every estimate, shape (estimates,), by epoch.
    """
    found = [
        query.answers(record.estimate, None if ground_truth is None else ground_truth[record.epoch])
        for record in records
    ]
    names = list(dict.fromkeys(answer.name for answers in found for answer in answers))
    places = {name: place for place, name in enumerate(names)}
    # Shape (curve, column, epoch).
    columns = np.full((len(names), 4, len(records)), np.nan)
    for at, answers in enumerate(found):
        for answer in answers:
            curve = places[answer.name]
            columns[curve, :3, at] = answer.value, answer.ci95_low, answer.ci95_high
            if answer.ground_truth is not None:
                columns[curve, 3, at] = answer.ground_truth
    return [
        Curve(name, column[0], column[1], column[2], None if ground_truth is None else column[3])
        for name, column in zip(names, columns, strict=True)
    ]


def write_curves(
    path: Path,
    job: DeployedJob,
    counts_query: CountsQuery,
    records: Sequence[EstimateRecord],
    curves: Sequence[Curve],
) -> None:
    """Draw at most `MOST_CURVES` curves with bands, and write a file; known ground truth is dashed.

    The suffix of the file name sets the format; the default is PNG. Records flagged as gaps are
    marked at the bottom. Raises `PlotError` without matplotlib, `ValueError` for an unknown format.
    """
    figure = new_figure(10, 5.6)
    axes = figure.add_subplot()
    at = positions(job, [record.epoch for record in records])
    for curve, color in zip(curves, _COLORS, strict=False):
        curve.draw(axes, at, color, job.reads(curve.name) or "estimate")
        if curve.ground_truth is not None:
            axes.plot(at, curve.ground_truth, color=color, linewidth=1.2, linestyle=DASHED)
    bands = "bands: 95 % confidence interval of each estimate"
    if any(curve.ground_truth is not None for curve in curves):
        bands += "; dashed: ground truth, not private"
    gaps = at[[GAP in record.flags for record in records]]
    if len(gaps):
        bands += "\nmarks at the bottom: reports missing, no coverage claimed"
        foot = axes.get_xaxis_transform()
        axes.plot(gaps, np.zeros(len(gaps)), "|", color=_VERMILION, transform=foot)
    title = [job.title or job.name, str(job.guarantee).partition(";")[0]]
    if job.change_limit is not None:
        title.append(capital(str(job.change_limit)))
    axes.set_title("\n".join((*title, bands)), loc="left", fontsize=11)
    kind = kind_of(job.domain)
    counted = kind.counted(job)[1] if kind.single else job.people
    name_axes(axes, job, "value" if counts_query.in_values else counted)
    if counts_query.in_values:
        axes.yaxis.set_major_formatter("{x:.10g}")
    if curves:
        axes.legend(
            title=counts_query.kind, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
        )
    save_figure(figure, path)


def name_axes(axes: Axes, job: Job, counted: str) -> None:
    calendar = job.epochs.calendar
    if calendar is None:
        axes.set_xlabel("epoch")
    else:
        # In UTC the axis has no jumps when clocks change; the ticks are in local time.
        axes.xaxis_date(calendar.zone)
        zone = "UTC" if calendar.zone is None else calendar.zone.key
        axes.set_xlabel(f"{period(job)} ({zone})")
    axes.set_ylabel(counted)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.01)
    tidy(axes)


def positions(job: Job, epochs: Sequence[int]) -> NDArray[np.generic]:
    """Return axis positions of epochs: their numbers, or their starts in UTC."""
    calendar = job.epochs.calendar
    if calendar is None:
        return np.array(epochs)
    starts = [calendar.start_of(epoch).replace(tzinfo=None) for epoch in epochs]
    return np.array(starts, dtype="datetime64[us]")
