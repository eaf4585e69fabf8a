"""Plots of an experiment: error by epsilon, k, n or d, whichever varies.

Measured errors are points with error bars of two standard errors in both directions. Predicted
errors are lines. If none of these parameters varies by itself, the cases are drawn below each
other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.plots import INSTALL, PlotError, save_figure, tidy
from dpstream.pipeline.results.smoothing import UNBIASED
from experiments.evaluation.counted_answers import ALL_ITEMS
from experiments.evaluation.results import Line, loss_differs_from_request, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "epsilon": "target epsilon for a user's whole stream",
    "k": "k, maximum changes",
    "n": "n, users",
    "d": "d, epochs",
}
_LOSS = "exact privacy loss of a user's whole stream"
_ERROR = "root mean squared error, users"

# Okabe and Ito's colors, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_GREY = "#555555"
_MARKERS = "osD^vPX"


def write_plots(name: str, lines: Sequence[Line], folder: Path) -> list[Path]:
    paths = []
    for what, figure in draw_plots(name, lines).items():
        paths.append(folder / f"{what}.png")
        save_figure(figure, paths[-1])
    return paths


def draw_plots(name: str, lines: Sequence[Line]) -> dict[str, Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(f"no plots without matplotlib: {INSTALL}") from None
    varying = variables(lines)
    figures = {}
    for axis in AXES:
        curves = _curves(axis, lines, varying)
        if curves:
            figure = Figure(figsize=(9, 5.6), layout="constrained")
            _draw_curves(figure.add_subplot(), AXES[axis], curves)
            figures[f"error-by-{axis}"] = figure
        if curves and curves[0].lines[0].selected is not None:
            figure = Figure(figsize=(9, 5.6), layout="constrained")
            _draw_selected(figure.add_subplot(), AXES[axis], curves)
            figures[f"selected-by-{axis}"] = figure
        if axis == "epsilon" and any(
            loss_differs_from_request(line) for curve in curves for line in curve.lines
        ):
            figure = Figure(figsize=(9, 5.6), layout="constrained")
            _draw_curves(figure.add_subplot(), _LOSS, [_by_loss(curve) for curve in curves])
            figures["error-by-loss"] = figure
    if not figures and lines:
        figure = Figure(figsize=(9, 1.6 + 0.4 * len(lines)), layout="constrained")
        _draw_cases(figure.add_subplot(), lines, varying)
        figures["errors"] = figure
        if lines[0].messages is not None and len(lines) > 1:
            figure = Figure(figsize=(9, 5.6), layout="constrained")
            _draw_messages(figure.add_subplot(), lines, varying)
            figures["error-by-messages"] = figure
    for figure in figures.values():
        figure.axes[0].set_title(name, loc="left", fontsize=11)
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figures


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Result lines that differ only in their position on an axis, sorted by position."""

    label: str
    estimate: str
    at: Sequence[float]
    lines: Sequence[Line]


def _curves(axis: str, lines: Sequence[Line], varying: Sequence[Mapping[str, Any]]) -> list[_Curve]:
    """Return the curves with at least two points; biased estimates are left to the tables."""
    groups: dict[tuple[str, str], list[tuple[float, Line]]] = {}
    for line, variable in zip(lines, varying, strict=True):
        # Drawn items exist for any number of users; other data of sets have a fixed user count.
        shown = (*UNBIASED, *((ALL_ITEMS,) if axis == "n" else ()))
        if axis in variable and line.estimate in shown:
            others = {key: variable[key] for key in variable if key not in (axis, "estimate")}
            key = _said(others), line.estimate
            groups.setdefault(key, []).append((float(variable[axis]), line))
    return [
        _Curve(*key, *zip(*sorted(points, key=lambda point: point[0]), strict=True))
        for key, points in groups.items()
        if len({at for at, _ in points}) > 1
    ]


def _said(variable: Mapping[str, Any]) -> str:
    numbered = (*AXES,)
    parts = [
        value if isinstance(value, str) else json.dumps(value)
        for key, value in variable.items()
        if key not in numbered
    ]
    parts += [f"{key} {variable[key]:g}" for key in numbered if key in variable]
    return ", ".join(parts)


def _by_loss(curve: _Curve) -> _Curve:
    losses = [
        np.nan if line.epsilon_stream is None else line.epsilon_stream for line in curve.lines
    ]
    return replace(curve, at=losses)


def _draw_curves(axes: Axes, title: str, curves: Sequence[_Curve]) -> None:
    labels = list(dict.fromkeys(curve.label for curve in curves))
    estimates = list(dict.fromkeys(curve.estimate for curve in curves))
    for curve in curves:
        color = COLORS[labels.index(curve.label) % len(COLORS)]
        axes.errorbar(
            curve.at,
            [line.rmse for line in curve.lines],
            [2 * (line.standard_error or 0) for line in curve.lines],
            color=color,
            capsize=2,
            linestyle="",
            **_marker(estimates.index(curve.estimate)),
        )
        if not np.isnan(expected := _expected(curve.lines)).all():
            axes.plot(curve.at, expected, color=color, linewidth=1.4, zorder=1)
    # Each label has a color, and each kind of estimate a marker.
    for number, label in enumerate(labels if len(labels) > 1 else ()):
        color = COLORS[number % len(COLORS)]
        axes.plot([], [], "s", color=color, markersize=8, label=label)
    for number, estimate in enumerate(estimates):
        axes.plot([], [], color=_GREY, linestyle="", label=estimate, **_marker(number))
    axes.plot([], [], color=_GREY, linewidth=1.4, label="predicted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    positions = sorted({position for curve in curves for position in curve.at})
    if len(positions) <= 12:
        axes.set_xticks(positions, [f"{position:,.4g}" for position in positions], minor=False)
        axes.set_xticks([], minor=True)
    axes.set_xlabel(title)
    axes.set_ylabel(_ERROR)
    tidy(axes)


def _draw_selected(axes: Axes, title: str, curves: Sequence[_Curve]) -> None:
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        axes.plot(
            curve.at,
            [np.nan if line.selected is None else line.selected for line in curve.lines],
            color=color,
            linestyle="",
            **_marker(0),
        )
        expected = [
            np.nan if line.predicted_selected is None else line.predicted_selected
            for line in curve.lines
        ]
        axes.plot(curve.at, expected, color=color, linewidth=1.4, zorder=1, label=curve.label)
    axes.set_xscale("log")
    axes.set_xlabel(title)
    axes.set_ylabel("trials that identify the item with the most users (lines: expected)")
    axes.yaxis.set_major_formatter("{x:.0%}")
    tidy(axes)


def _draw_messages(axes: Axes, lines: Sequence[Line], varying: Sequence[Mapping[str, Any]]) -> None:
    for number, (line, variable) in enumerate(zip(lines, varying, strict=True)):
        color, marker = COLORS[number % len(COLORS)], _MARKERS[number % len(_MARKERS)]
        axes.errorbar(
            [line.messages or np.nan],
            [line.rmse],
            [2 * (line.standard_error or 0)],
            fmt=marker,
            color=color,
            capsize=2,
            label=_said(variable),
        )
        if line.predicted_messages is not None and line.predicted_rmse is not None:
            axes.plot(
                line.predicted_messages,
                line.predicted_rmse,
                marker,
                color=color,
                fillstyle="none",
                markersize=12,
                zorder=1,
            )
    axes.plot([], [], "o", color=_GREY, fillstyle="none", markersize=12, label="predicted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("messages per user, including dummies")
    axes.set_ylabel(_ERROR)
    tidy(axes)


def _marker(number: int) -> dict[str, Any]:
    """Return a marker; only the first is filled, so that overlapping markers stay visible."""
    return {
        "marker": _MARKERS[number % len(_MARKERS)],
        "fillstyle": "none" if number else "full",
        "markersize": 8 if number else 5,
    }


def _draw_cases(axes: Axes, lines: Sequence[Line], varying: Sequence[Mapping[str, Any]]) -> None:
    places = np.arange(len(lines))
    axes.errorbar(
        [line.rmse for line in lines],
        places,
        xerr=[2 * (line.standard_error or 0) for line in lines],
        fmt=_MARKERS[0],
        color=COLORS[0],
        capsize=2,
        label="measured",
    )
    if not np.isnan(expected := _expected(lines)).all():
        axes.plot(expected, places, "|", markersize=14, color=COLORS[1], label="predicted")
    axes.set_yticks(places, [_said(variable) or "measured" for variable in varying])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(_ERROR)
    tidy(axes)


def _expected(lines: Sequence[Line]) -> NDArray[np.float64]:
    expected = [np.nan if line.predicted_rmse is None else line.predicted_rmse for line in lines]
    return np.array(expected, np.float64)
