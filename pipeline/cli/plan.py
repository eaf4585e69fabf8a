"""The command ``dpstream plan``."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import AsJson, JobFile
from dpstream.pipeline.cli.output import print_json, tell
from dpstream.pipeline.cli.plan_lines import half_width, show_changes, show_plan
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.planning.change_budgets import count_changes, read_changes_histogram
from dpstream.pipeline.planning.event_previews import MeasurePreview, preview_measures
from dpstream.pipeline.planning.job_plan import Plan
from dpstream.pipeline.planning.job_plan import plan as make_plan
from dpstream.pipeline.plots import new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_BLUE, _VERMILION = "#0072B2", "#D55E00"


def write_plan_plot(made: Plan, path: Path) -> None:
    save_figure(draw_plan(made), path)


def draw_plan(made: Plan) -> Figure:
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot()
    epochs = [epoch.epoch for epoch in made.epochs]
    online = [epoch.standard_error for epoch in made.epochs]
    axes.plot(epochs, online, color=_BLUE, linewidth=1.6, label="estimate")
    smoothed = [epoch.smoothed for epoch in made.epochs if epoch.smoothed is not None]
    if smoothed:
        axes.plot(
            epochs,
            smoothed,
            color=_VERMILION,
            linewidth=1.6,
            linestyle=":",
            label="smoothed, after the end of the horizon",
        )
    axes.set_title(
        f"{made.job}: expected error with {made.users:,} "
        f"users\n{str(made.guarantee).partition(';')[0]}",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("epoch")
    axes.set_ylabel("standard error, in users")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    tidy(axes)
    axes.legend(loc="best", frameon=False)
    return figure


class Trusted(StrEnum):
    NONE = "none"
    SHUFFLE = "shuffle"


def plan(
    job: JobFile,
    users: Annotated[
        int, typer.Option(min=1, help="Expected number of participating users.")
    ] = 10_000,
    target_error: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|USERS",
            help="Target root mean squared error, such as 2% or 500: print how many users it "
            "requires or allows.",
        ),
    ] = None,
    changes_histogram: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Histogram of changes per user, to weigh noise against the bias from users who "
            "exceed parameters.max_changes: a CSV with columns changes,share or changes,users.",
        ),
    ] = None,
    changes_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compute this histogram from a change log, or from the events of a job with "
            "measures. The output is then not private.",
        ),
    ] = None,
    reference_input: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Input file of the job, or a CSV with the columns item,count: predict errors "
            "for these item frequencies. The output is then not private.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot the error of every epoch into a PNG file."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Compare all protocols that could run the same job."),
    ] = False,
    recommend: Annotated[
        bool,
        typer.Option(
            "--recommend", help="Recommend a protocol for --trust and --target-error, with reasons."
        ),
    ] = False,
    trust: Annotated[
        Trusted, typer.Option(help="Party that the recommended protocol may trust.")
    ] = Trusted.SHUFFLE,
    colluding: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of reporting users who collude with the observer, such as 0.1.",
        ),
    ] = 0.0,
    dropout: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of users who do not report at an epoch."),
    ] = 0.0,
    by_size: Annotated[
        str | None,
        typer.Option(
            metavar="SHARES",
            help="Sizes of the groups of a breakdown, such as 64%,30%,6%, to predict the error of "
            "each. Default: equal sizes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the privacy and accuracy of a job, before any data exists."""
    loaded = load_job(job)
    previews = _previews(loaded, changes_from)
    changes = _changes(loaded, changes_histogram, changes_from)
    for option, share in (("--colluding", colluding), ("--dropout", dropout)):
        if not 0 <= share < 1:
            raise UsageProblem(
                f"{option}: got {share:g}; expected a share of at least 0 and below 1, such as 0.1"
            )
    reference = None if reference_input is None else _reference_values(loaded, reference_input)
    made = make_plan(
        loaded,
        users=users,
        error=None if target_error is None else _target_error(target_error),
        changes=changes,
        held=reference,
        compared=True,
        side_by_side=compare,
        trust=trust.value if recommend else None,
        colluding=colluding,
        dropout=dropout,
        by_size=() if by_size is None else _sizes(by_size),
    )
    if as_json:
        # `json_fields` of the guarantee includes empty fields, which its own JSON omits.
        body: dict[str, Any] = {"guarantee": json_fields(made.guarantee)}
        body |= {"interval_half_width": half_width(made.rmse)}
        if previews:
            body["measures"] = [each.to_json() for each in previews]
        print_json(json_fields(made) | body)
    else:
        show_plan(made)
        if previews:
            show_changes(previews, getattr(loaded.parameters, "max_changes", None))
    if plot is not None:
        _plot(made, plot)
    if changes_from is not None:
        tell(
            f"not private: {changes_from} was counted without noise to obtain the share of users "
            "with each number of changes. Do not publish these shares, or predictions made from "
            "them"
        )
    if reference_input is not None:
        tell(
            f"not private: errors are predicted from {reference_input} without noise. Do not "
            "publish these errors unless that file is public"
        )


def _sizes(text: str) -> list[float]:
    try:
        shares = [float(part.strip().removesuffix("%")) / 100 for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
        raise UsageProblem(
            f"--by-size: got {text}; expected shares of the users in percent, at most 100% "
            "together, such as 64%,30%,6%"
        )
    return shares


def _reference_values(job: Job, path: Path) -> NDArray[np.float64]:
    # Imported only on use: a plan without a reference input is faster.
    from dpstream.pipeline.cli.inputs import load_ground_truth
    from dpstream.pipeline.devices.item_log import ItemLog
    from dpstream.pipeline.devices.item_shares import counts_in, usual_shares
    from dpstream.pipeline.devices.rows import BadRowsError

    slots = job.domain.slots
    if slots is None:
        raise UsageProblem(
            f"--reference-input requires a protocol that counts items epoch by epoch; "
            f"{job.protocol} does not"
        )

    counts = counts_in(path)
    if counts is not None:
        return counts * (slots / float(counts.sum()))
    try:
        log = load_ground_truth(job, path)
    except BadRowsError as error:
        raise BadRowsError(error.bad_rows, skippable=False) from None
    assert isinstance(log, ItemLog)
    return usual_shares(log)


def _plot(made: Plan, path: Path) -> None:
    try:
        write_plan_plot(made, path)
        tell(f"wrote {path}")
    except ValueError as error:  # unknown image format
        raise UsageProblem(f"--plot {path}: {error}") from None


def _target_error(text: str) -> float:
    try:
        error = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        error = 0.0
    if not 0 < error < math.inf or (error >= 1 and text.endswith("%")):
        raise UsageProblem(
            f"--target-error: got {text!r}; expected a share of the users, such as 2%, or a number "
            "of users, such as 500"
        )
    return error


def _previews(job: Job, path: Path | None) -> list[MeasurePreview]:
    if job.measures is None or path is None:
        return []
    from dpstream.pipeline.devices.event_log import read_events

    read, events = read_events(job, path, last_epoch=job.epochs.count)
    read.check(read.bad_rows, skip=False)
    return preview_measures(job, events, read.last_epoch, np.random.default_rng())


def _changes(job: Job, histogram: Path | None, log: Path | None) -> NDArray[np.float64] | None:
    if histogram is not None and log is not None:
        raise UsageProblem("--changes-histogram and --changes-from are mutually exclusive")

    if histogram is not None:
        return read_changes_histogram(histogram, job.epochs.count)
    counts_bits = job.domain.items is None and hasattr(job.parameters, "max_changes")
    if log is None or (job.measures is not None and not counts_bits):
        return None
    from dpstream.pipeline.cli.inputs import load_ground_truth
    from dpstream.pipeline.devices.change_log import ChangeLog
    from dpstream.pipeline.devices.rows import BadRowsError

    try:
        values = load_ground_truth(job, log)
    except BadRowsError as error:
        raise BadRowsError(error.bad_rows, skippable=False) from None
    if not isinstance(values, ChangeLog):
        raise UsageProblem(
            f"--changes-from requires values that change; {job.protocol} counts each epoch "
            "independently"
        )
    return count_changes(values, job.epochs.count)
