"""What everything that draws has in common: Matplotlib, which need not be installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.whole_files import replaced_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "pip install 'dpstream[plot]'"


class PlotError(DpstreamError):
    """Matplotlib is not installed; the message says how to install it."""

    exit_code = WRONG_INPUT


def new_figure(width: float, height: float, what: str = "plot") -> Figure:
    """An empty figure, of so many inches.

    Raises:
        PlotError: matplotlib is missing; the message says of `what` there is none.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(f"no {what} without matplotlib: {INSTALL}") from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> None:
    """A light grid behind what is drawn, and no box around it."""
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture of the kind that the end of its name says, else a PNG; whole or not at all.

    Raises:
        ValueError: there is no such kind of picture.
        OSError: it cannot be written.
    """
    with replaced_whole(path) as part:
        figure.savefig(part, dpi=150, format=path.suffix.removeprefix(".") or "png")
