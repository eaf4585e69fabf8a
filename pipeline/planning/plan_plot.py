"""The plot of a plan: the error to expect at every epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpstream.pipeline.planning.plan import Plan
from dpstream.pipeline.plots import new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _VERMILION = "#0072B2", "#D55E00"


def write_plan_plot(made: Plan, path: Path) -> None:
    """Draw a plan into a PNG file; see `draw_plan`."""
    save_figure(draw_plan(made), path)


def draw_plan(made: Plan) -> Figure:
    """Draw the standard deviation of every epoch's estimate, in users, and of the smoothed one.

    Raises:
        PlotError: matplotlib is missing.
    """
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot()
    epochs = [epoch.epoch for epoch in made.epochs]
    online = [epoch.standard_deviation for epoch in made.epochs]
    axes.plot(epochs, online, color=_BLUE, linewidth=1.6, label="estimate")
    smoothed = [epoch.smoothed for epoch in made.epochs if epoch.smoothed is not None]
    if smoothed:
        axes.plot(
            epochs,
            smoothed,
            color=_VERMILION,
            linewidth=1.6,
            linestyle=":",
            label="smoothed, once the horizon is over",
        )
    axes.set_title(
        f"{made.job}: error to expect with {made.users:,} users\n"
        f"{str(made.guarantee).partition(';')[0]}",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("epoch")
    axes.set_ylabel("standard deviation, in users")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    tidy(axes)
    axes.legend(loc="best", frameon=False)
    return figure
