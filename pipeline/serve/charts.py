"""The Bokeh chart of the live page: empty curves with bands, filled by the page.

The chart contains no numbers. The page requests them from `/api/jobs/J/curve` and fills the
sources, which it finds by name. For curve i, counted from 0:

=============  ==============  =====================================================================
source         columns         content
=============  ==============  =====================================================================
`band-i`       x, y            the 95 % band as one polygon for every unbroken run of epochs, with
                               NaN between them: `varea` and `Band` would fill straight through gaps
`alone-i`      x, low, high    intervals of epochs whose neighbors are gaps: these have no area
`wide-i`       x, y            as `band-i`, for the simultaneous band of all epochs
`far-i`        x, low, high    as `alone-i`, for the band of `wide-i`
`estimate-i`   x, y            solid line and dots, NaN at gaps
`smoothed-i`   x, y            dashed line
`ground-truth-i`  x, y         dotted line
`end-i`        x, y            a marker of its own shape at the last visible estimate
=============  ==============  =====================================================================

Ranges are named `epochs` and `values`, their tick formatters `epochs-ticks` and `values-ticks`; the
page supplies the tick texts. Other names: date ticks `dates`, chart `chart`, dots `dots-i`,
markers `mark-i`, vertical line at the selected epoch `cursor`. Colors are those of Okabe and Ito
(https://jfly.uni-koeln.de/color/), distinguishable by color-blind readers; the eighth color, black,
is reserved for the ground truth.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Theme: TypeAlias = Literal["light", "dark"]

MOST_CURVES = 12
"""Maximum number of curves in a chart; more would look alike, and slow down the page."""

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
_INK = {"light": "#1d2329", "dark": "#e8eaed"}
_FAINT = {"light": "#5b6570", "dark": "#9aa4af"}
_GRID = {"light": "#e6e9ec", "dark": "#2c333b"}
_PAPER = {"light": "#ffffff", "dark": "#171b20"}
_COLORS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800"),
    "dark": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#3D9BE0", "#F0E442"),
}
# With as many shapes as colors, the eighth curve would look like the first.
_SHAPES = ("circle", "square", "triangle", "diamond")


def colors(theme: Theme) -> tuple[str, ...]:
    """Return the curves' colors; marker shapes distinguish curves with the same color."""
    return tuple(_COLORS[theme][index % 7] for index in range(MOST_CURVES))


def curves(
    theme: Theme, count: int, *, unit: str = "users", times: str | None = None
) -> dict[str, Any]:
    """Return the chart for 1 to `MOST_CURVES` curves, as JSON from `bokeh.embed.json_item`.

    `unit` and `times` are the titles of the axes; `times` is None if epochs have no dates. If they
    have dates, the page supplies the ticks.
    """
    if not 1 <= count <= MOST_CURVES:
        raise ValueError(f"got {count} curves; expected 1 to {MOST_CURVES}")
    from bokeh.embed import json_item

    drawn = _empty_chart(theme, unit, times)
    for index in range(count):
        _add_curve(drawn, index, theme, alone=count == 1)
    return dict(json_item(drawn))


def _empty_chart(theme: Theme, unit: str, times: str | None) -> Any:
    from bokeh.models import (
        BasicTicker,
        BasicTickFormatter,
        BoxZoomTool,
        FixedTicker,
        Range1d,
        WheelZoomTool,
    )
    from bokeh.models.annotations import Span
    from bokeh.plotting import figure

    zoom = BoxZoomTool(dimensions="width")
    zoom.overlay.update(
        fill_color=_FAINT[theme], fill_alpha=0.15, line_color=_FAINT[theme], line_dash="solid"
    )
    drawn = figure(
        name="chart",
        x_range=Range1d(start=0, end=1, name="epochs"),
        y_range=Range1d(start=0, end=1, name="values"),
        sizing_mode="stretch_both",
        tools=[zoom, WheelZoomTool(dimensions="width", modifiers="ctrl")],
        toolbar_location=None,
        background_fill_color=_PAPER[theme],
        border_fill_color=_PAPER[theme],
        outline_line_color=None,
        min_border_right=18,
        min_border_top=10,
        output_backend="canvas",
    )
    drawn.toolbar.active_drag = zoom
    text = {"text_color": _FAINT[theme], "text_font": _FONT, "text_font_size": "12px"}
    for axis, title, name in (
        (drawn.xaxis[0], times or "epoch", "epochs"),
        (drawn.yaxis[0], unit, "values"),
    ):
        axis.axis_label = title
        axis.formatter = BasicTickFormatter(name=f"{name}-ticks", use_scientific=False)
        axis.update(
            **{f"axis_label_{name}": value for name, value in text.items()},
            **{f"major_label_{name}": value for name, value in text.items()},
            axis_label_text_font_style="normal",
            axis_line_color=None,
            major_tick_line_color=None,
            minor_tick_line_color=None,
        )
    drawn.xaxis[0].axis_line_color = _GRID[theme]
    if times is None:
        drawn.xaxis[0].ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    else:
        drawn.xaxis[0].ticker = FixedTicker(ticks=[], name="dates")
    drawn.xgrid[0].grid_line_color = None
    drawn.ygrid[0].grid_line_color = _GRID[theme]
    drawn.add_layout(
        Span(dimension="height", location=float("nan"), line_color=_FAINT[theme], name="cursor")
    )
    return drawn


def _add_curve(drawn: Any, index: int, theme: Theme, *, alone: bool) -> None:
    from bokeh.models import ColumnDataSource

    def source(kind: str, columns: str = "x y") -> ColumnDataSource:
        return ColumnDataSource(data={each: [] for each in columns.split()}, name=f"{kind}-{index}")

    color = colors(theme)[index]
    for area, line, strength in (("wide", "far", 0.5), ("band", "alone", 1.0)):
        drawn.patch(
            "x",
            "y",
            source=source(area),
            fill_color=color,
            fill_alpha=strength * (0.22 if alone else 0.13),
            line_color=None,
            level="underlay",
        )
        drawn.segment(
            "x", "low", "x", "high", source=source(line, "x low high"), color=color,
            line_alpha=0.5 * strength, line_width=3,
        )  # fmt: skip
    ground_truth = _INK[theme] if alone else color
    drawn.line(
        "x",
        "y",
        source=source("ground-truth"),
        color=ground_truth,
        line_dash="dotted",
        line_width=2,
    )
    drawn.line("x", "y", source=source("smoothed"), color=color, line_dash=[7, 4], line_width=2)
    estimate = source("estimate")
    drawn.line("x", "y", source=estimate, color=color, line_width=2, line_join="round")
    shape = _SHAPES[index % len(_SHAPES)]
    drawn.scatter(
        "x", "y", source=estimate, marker=shape, color=color, size=6, name=f"dots-{index}"
    )
    drawn.scatter(
        "x",
        "y",
        source=source("end"),
        marker=shape,
        size=9,
        fill_color=color,
        line_color=_PAPER[theme],
        line_width=1.5,
        name=f"mark-{index}",
    )
