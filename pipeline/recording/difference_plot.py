"""The plot of two jobs: how far their estimates differ at every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.recording.differences import Difference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _VERMILION = "#0072B2", "#D55E00"


def write_differences(names: Sequence[str], found: Sequence[Difference], path: Path) -> None:
    """Draw differences into a file, PNG for one; see `draw_differences`."""
    save_figure(draw_differences(names, found), path)


def draw_differences(names: Sequence[str], found: Sequence[Difference]) -> Figure:
    """Draw the largest difference of estimates at every epoch, in standard deviations.

    Epochs whose integers differ, or that one job only has, have a mark at the foot of the plot.

    Args:
        names: of the two jobs.
        found: in the order of epochs.

    Raises:
        PlotError: matplotlib is missing.
    """
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot()
    deviations = [np.nan if each.deviations is None else each.deviations for each in found]
    axes.plot(
        [each.epoch for each in found],
        deviations,
        color=_BLUE,
        linewidth=1.6,
        marker=".",
        label="largest difference of estimates",
    )
    marked = [each.epoch for each in found if each.integers or each.only is not None]
    if marked:
        axes.plot(
            marked,
            np.zeros(len(marked)),
            "|",
            color=_VERMILION,
            transform=axes.get_xaxis_transform(),
            label="other integers, or in one job only",
        )
    axes.set_title(f"{' and '.join(names)}: estimates compared", loc="left", fontsize=11)
    axes.set_xlabel("epoch")
    axes.set_ylabel("standard deviations")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    tidy(axes)
    axes.legend(loc="best", frameon=False)
    return figure
