"""Compare jobs that count the same values: a table of errors, and a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpstream.pipeline.operations.up.outcome import NOT_PRIVATE, Outcome
from dpstream.pipeline.plots import new_figure, save_figure
from dpstream.pipeline.results.curves import DASHED, curves_of, name_axes, plotted_query, positions
from dpstream.pipeline.results.expected_errors import forecast_of
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.privacy_sentences import trusted_party
from dpstream.randomizers.guarantee import rounded_up

COMPARED = ("protocol", "epsilon", "RMSE", "smoothed", "predicted", "messages", "trusted party")
"""Columns of `compared`; `messages` is the number predicted per user over all epochs."""

# Okabe and Ito's colors, in the order of the live page.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def compared(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    """Yield a row for each run: errors in users, against the ground truth."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}"

    for each in outcomes:
        guarantee = each.job.guarantee
        yield [
            each.job.protocol,
            rounded_up(guarantee.epsilon, 3),
            *map(number, (each.rmse, each.smoothed_rmse, each.predicted_rmse)),
            number(forecast_of(each.job, each.job.calibrate()).reports_per_user.sum()),
            trusted_party(guarantee.trust),
        ]


def write_comparison(outcomes: Sequence[Outcome], path: Path) -> None:
    figure = new_figure(10, 7.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for outcome, color in zip(outcomes, _COLORS, strict=False):
        job, records = outcome.job, outcome.records
        at = positions(job, [record.epoch for record in records])
        (curve,) = curves_of(plotted_query(job.domain, None, records), records, outcome.known)
        assert curve.ground_truth is not None
        name = f"{job.protocol}, epsilon {rounded_up(job.guarantee.epsilon, 3)}"
        curve.draw(above, at, color, name)
        curve.draw(below, at, color, name, less=curve.ground_truth)
    true = f"ground truth ({NOT_PRIVATE})"
    above.plot(at, curve.ground_truth, color="black", linewidth=1.3, linestyle=DASHED, label=true)
    below.axhline(0, color="black", linewidth=1.0, linestyle=DASHED)
    title = f"The same {job.people} counted by several protocols; bands: 95 % confidence intervals"
    above.set_title(title, loc="left", fontsize=11)
    name_axes(above, job, kind_of(job.domain).counted(job)[1])
    name_axes(below, job, "estimate minus ground truth")
    above.set_xlabel("")
    above.legend(loc="best", frameon=False)
    save_figure(figure, path)
