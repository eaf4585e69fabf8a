"""Several jobs that count the same, side by side: a table of their errors, and one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE, Outcome
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.results.curves import name_time_axis, positions
from dpstream.pipeline.results.kinds.known_kinds import kind_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ("protocol", "epsilon", "RMSE", "smoothed", "predicted", "messages", "to be trusted")
"""The columns of `compared`; messages are those of a user, over all epochs."""

# Okabe and Ito's colours, in the order of the live page.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def compared(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    """A row for every run: errors against the truth, in users."""
    for each in outcomes:
        guarantee = each.job.guarantee
        yield [
            each.job.protocol,
            f"{guarantee.epsilon:.3g}",
            _number(each.rmse),
            _number(each.smoothed_rmse),
            _number(each.predicted_rmse),
            f"{each.reports / each.users:,.0f}",
            guarantee.trust.partition(":")[0].partition(",")[0],
        ]


def write_comparison(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw runs that count a single value of the same users into a PNG file.

    On top the estimates, with their 95 % bands, and the truth; below, by how much they are off.

    Raises:
        PlotError: matplotlib is missing.
    """
    save_figure(_draw(outcomes), path)


def _draw(outcomes: Sequence[Outcome]) -> Figure:
    figure = new_figure(10, 7.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for outcome, colour in zip(outcomes, _COLOURS, strict=False):
        rows = outcome.rows
        at = positions(outcome.job, [row.epoch for row in rows])
        numbers = [
            (each.estimate.value, each.estimate.low, each.estimate.high, each.truth)
            for each in rows
        ]
        value, low, high, truth = np.array(numbers, np.float64).T
        name = f"{outcome.job.protocol}, epsilon {outcome.job.guarantee.epsilon:.3g}"
        for axes, less in ((above, np.zeros(len(at))), (below, truth)):
            axes.fill_between(at, low - less, high - less, color=colour, alpha=0.2, linewidth=0)
            axes.plot(at, value - less, color=colour, linewidth=1.5, label=name)
    dashed = (0, (5, 2))
    above.plot(
        at, truth, color="black", linewidth=1.3, linestyle=dashed, label=f"truth ({NOT_PRIVATE})"
    )
    below.axhline(0, color="black", linewidth=1.0, linestyle=dashed)
    people = outcomes[0].job.people
    said = f"The same {people} counted by several protocols; bands: 95 % intervals"
    above.set_title(said, loc="left", fontsize=11)
    above.set_ylabel(kind_of(outcomes[0].job.domain).counted(outcomes[0].job)[1])
    below.set_ylabel("estimate minus truth")
    name_time_axis(below, outcomes[0].job)
    for axes in (above, below):
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.margins(x=0.01)
        tidy(axes)
    above.legend(loc="best", frameon=False)
    return figure


def _number(error: float | None) -> str:
    return "-" if error is None else f"{error:,.0f}"
