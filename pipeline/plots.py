"""Shared plotting functions; Matplotlib is optional."""

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
    exit_code = WRONG_INPUT


def new_figure(width: float, height: float, what: str = "plot") -> Figure:
    """Return an empty figure, sized in inches; raise `PlotError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(f"{what} requires matplotlib. Install it: {INSTALL}") from None
    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: Axes) -> None:
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, completely or not at all, in the format that the suffix names (default: PNG).

    Raises `ValueError` if the format is unknown, `OSError` if the file cannot be written.
    """
    with replaced_whole(path) as part:
        figure.savefig(part, dpi=150, format=path.suffix.removeprefix(".") or "png")
