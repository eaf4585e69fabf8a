"""The plot: estimate, 95 % band and truth over the epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import calendar_of
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE
from dpstream.pipeline.operations.up.progress import Row
from dpstream.pipeline.plots import new_figure, tidy
from dpstream.pipeline.results.kinds.registry import kind_of
from dpstream.pipeline.results.phrases import capital

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAPS = "reports missing, no coverage claimed"

# Okabe and Ito's colours, which the colour-blind can tell apart.
_BLUE, _SKY_BLUE, _VERMILION, _BLACK = "#0072B2", "#56B4E9", "#D55E00", "#000000"


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


def title_lines(job: DeployedJob) -> Iterator[str]:
    """Yield the job's title, its guarantee and what its intervals assume."""
    yield job.title or job.name
    yield str(job.guarantee()).partition(";")[0]
    if job.change_limit is not None:
        yield capital(str(job.change_limit))


def mark_gaps(axes: Axes, at: NDArray[np.generic]) -> None:
    """Mark epochs that are flagged as gaps at the foot of a plot; their positions are given."""
    if len(at):
        axes.plot(
            at,
            np.zeros(len(at)),
            "|",
            color=_VERMILION,
            transform=axes.get_xaxis_transform(),
            label=GAPS,
        )


def name_time_axis(axes: Axes, job: Job) -> None:
    """Say what the axis of epochs is; dates on it are those of the job's time zone."""
    calendar = calendar_of(job)
    if calendar is None:
        axes.set_xlabel("epoch")
        return
    # In UTC nothing stands still or goes back when clocks do; the ticks are those of the clocks.
    axes.xaxis_date(calendar.zone)
    axes.set_xlabel(f"{period(job)} ({'UTC' if calendar.zone is None else calendar.zone.key})")


def positions(job: Job, epochs: Sequence[int]) -> NDArray[np.generic]:
    """Where epochs stand on the axis: at their number, or when they begin, in UTC."""
    calendar = calendar_of(job)
    if calendar is None:
        return np.array(epochs)
    starts = [calendar.start_of(epoch).replace(tzinfo=None) for epoch in epochs]
    return np.array(starts, dtype="datetime64[us]")


def _numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
