"""The plot of a run: estimates, 95 % bands and truth over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE
from dpstream.pipeline.operations.up.progress import Row
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.results.curves import (
    curves_of,
    draw_curves,
    mark_gaps,
    name_time_axis,
    plotted_query,
    positions,
    title_lines,
)
from dpstream.pipeline.results.kinds.known_kinds import kind_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart.
_BLUE, _SKY_BLUE, _BLACK = "#0072B2", "#56B4E9", "#000000"


def write_rows(job: DeployedJob, rows: Sequence[Row], path: Path) -> None:
    """Draw a run into a PNG file; see `draw_rows`."""
    save_figure(draw_rows(job, rows), path)


def draw_rows(job: DeployedJob, rows: Sequence[Row]) -> Figure:
    """Draw the epochs of a run: its count, its largest items, or the quartiles of its numbers.

    Raises:
        PlotError: matplotlib is missing.
    """
    records = [row.record for row in rows]
    if kind_of(job.domain).single:
        return draw_plot(job, rows)
    query = plotted_query(job.domain, None, records)
    epochs = [row.epoch for row in rows]
    truth = {row.epoch: row.truths for row in rows}
    curves = curves_of(query, records, truth)
    gaps = [row.epoch for row in rows if GAP in row.estimate.flags]
    return draw_curves(job, query.question, epochs, curves, gaps)


def draw_plot(job: DeployedJob, rows: Sequence[Row]) -> Figure:
    """Draw the rows of a job that counts a single value.

    An epoch without an estimate interrupts line and band. One that is flagged as a gap, for which
    no coverage is claimed, has a mark at the foot of the plot.

    Raises:
        PlotError: matplotlib is missing.
    """
    figure = new_figure(10, 5.6)
    axes = figure.add_subplot()
    estimates = [row.estimate for row in rows]
    at = positions(job, [row.epoch for row in rows])
    axes.fill_between(
        at,
        _numbers([estimate.low for estimate in estimates]),
        _numbers([estimate.high for estimate in estimates]),
        color=_SKY_BLUE,
        alpha=0.35,
        linewidth=0,
        label="95 % interval",
    )
    axes.plot(
        at,
        _numbers([estimate.value for estimate in estimates]),
        color=_BLUE,
        linewidth=1.8,
        label="estimate",
    )
    axes.plot(
        at,
        _numbers([row.truth for row in rows]),
        color=_BLACK,
        linewidth=1.4,
        linestyle=(0, (5, 2)),
        label=f"truth ({NOT_PRIVATE})",
    )
    mark_gaps(axes, at[[GAP in estimate.flags for estimate in estimates]])
    axes.set_title("\n".join(title_lines(job)), loc="left", fontsize=11)
    name_time_axis(axes, job)
    axes.set_ylabel(kind_of(job.domain).counted(job)[1])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.01)
    tidy(axes)
    axes.legend(loc="best", frameon=False)
    return figure


def _numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
