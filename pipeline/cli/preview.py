"""The command ``dpstream preview``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.inputs import ToEpoch, UserList, load_user_list
from dpstream.pipeline.cli.options import AsJson, JobFile
from dpstream.pipeline.cli.output import (
    plural,
    print_json,
    print_pairs,
    print_table,
    print_text,
    tell,
)
from dpstream.pipeline.cli.plan_lines import show_changes
from dpstream.pipeline.devices.event_log import history_warnings, read_events
from dpstream.pipeline.devices.measured_events import Events
from dpstream.pipeline.devices.tables import InputTable
from dpstream.pipeline.jobs.job_files import Job, load_job
from dpstream.pipeline.planning.event_previews import (
    MeasurePreview,
    events_by_epoch,
    preview_measures,
)
from dpstream.pipeline.plots import new_figure, save_figure, tidy
from dpstream.pipeline.values.event_rows import EventDomain
from dpstream.pipeline.whole_files import replaced_whole
from dpstream.randomizers.equal_buckets import number_text

_ROWS_SHOWN = 20
_LINES_DRAWN = 8


@takes_input_flags
def preview(
    job: JobFile,
    input: Annotated[
        Path,
        typer.Option("--input", metavar="FILE", help="Events: CSV, JSON lines or Parquet."),
    ],
    users: UserList = None,
    write_users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a user list: all users with a row, with the public attributes in each "
            "user's first row. Everyone on the list, and these columns, become public.",
        ),
    ] = None,
    to_epoch: ToEpoch = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot all answers by epoch into a PNG file."),
    ] = None,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Show what a file of events means for a job's measures, before anything is spent.

    The output is not private: it is counted without noise.
    """
    loaded = load_job(job)
    if loaded.measures is None:
        raise UsageProblem(
            f"preview requires a job with 'measures'; {loaded.name} reads values. To see these, "
            "use 'dpstream simulate'"
        )
    dated = [name for name, keys in (loaded.attributes or {}).items() if keys.enrolled is not None]
    if write_users is not None and dated:
        raise UsageProblem(
            f"--write-users takes public attributes from events, but {dated[0]} is the time of "
            "enrollment, which must not depend on them. Write the user list yourself"
        )
    columns = public_columns(loaded) if write_users is not None else {}
    last_epoch = to_epoch if to_epoch is not None else loaded.last_epoch
    read, events = read_events(
        *(loaded, input),
        last_epoch=last_epoch,
        to_last_row=last_epoch is None,
        users=load_user_list(loaded, users),
        input_format=flags.format_of(loaded),
        domain=with_labels(loaded.event_domain, columns),
    )
    made = preview_measures(loaded, events, read.last_epoch, np.random.default_rng())
    counts = events_by_epoch(events, read.last_epoch)
    if as_json:
        print_json(
            {
                "job": loaded.name,
                "users": len(read.users),
                "events": counts,
                "bad_rows": read.bad_rows.total,
                "measures": [each.to_json() for each in made],
            }
        )
    else:
        _show(loaded, read, counts, made)
    if plot is not None:
        _plot(loaded, counts, made, plot)
    if write_users is not None:
        _write_roster(write_users, read, events, columns)
    tell(
        f"not private: {input} was counted without noise. Do not publish this output, or numbers "
        "made from it"
    )


def public_columns(job: Job) -> dict[str, tuple[str, ...]]:
    attributes = job.attributes or {}
    return {column: attributes[name].values for name, column in job.public_columns.items()}


def with_labels(domain: EventDomain, columns: Mapping[str, Sequence[str]]) -> EventDomain:
    declared = {
        column: (*domain.declared.get(column, ()), *columns.get(column, ()))
        for column in (*domain.declared, *columns)
    }
    labels = {column: tuple(dict.fromkeys(values)) for column, values in declared.items()}
    return EventDomain(domain.names, domain.numbers, labels, domain.timed)


def _show(
    job: Job, read: InputTable, counts: Sequence[int], made: Sequence[MeasurePreview]
) -> None:
    print_text(
        f"{job.name}: {plural(len(read.users), 'user')}, {plural(sum(counts), 'event')}", "bold"
    )
    whose = "on the user list" if read.on_user_list else "with a row in the input"
    refused = f"{read.bad_rows.total:,}" if read.bad_rows.total else "none"
    print_pairs([("users", f"{len(read.users):,} {whose}"), ("rows refused", refused)])
    if read.bad_rows.total:
        print_text(str(read.bad_rows))
    for warning in (*read.warnings, *history_warnings(job, read)):
        print_text(f"note: {warning}")
    shown = {
        f"{each.name}: {name}": (each, at) for each in made for at, name in enumerate(each.columns)
    }
    stride = max(1, -(-len(counts) // _ROWS_SHOWN))
    print_text("\nanswers at the end of each epoch", "bold")
    print_table(
        [">epoch", ">events", *(f">{name}" for name in shown)],
        (
            [
                job.epochs.dated(epoch),
                f"{counts[epoch - 1]:,}",
                *(_text(each.answers[epoch - 1, at]) for each, at in shown.values()),
            ]
            for epoch in range(1, len(counts) + 1, stride)
        ),
    )
    if stride > 1:
        tell(f"only some epochs are shown; --json prints all {len(counts):,}")
    show_changes(made, getattr(job.parameters, "max_changes", None))


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, np.integer) else number_text(round(float(value), 2))


def _plot(job: Job, counts: Sequence[int], made: Sequence[MeasurePreview], path: Path) -> None:
    figure = new_figure(10, 2.4 * (1 + len(made)))
    axes = figure.subplots(1 + len(made), 1, sharex=True)
    epochs = range(1, len(counts) + 1)
    first, *others = np.atleast_1d(axes).tolist()
    first.bar(epochs, counts, width=1.0, color="#999999")
    first.set_title(f"{job.name}: events", loc="left", fontsize=11)
    for each, axis in zip(made, others, strict=True):
        is_mean = each.measure.answer == "mean"
        largest = np.argsort(-each.answers.sum(axis=0), kind="stable")[:_LINES_DRAWN]
        for at in [0] if is_mean else sorted(largest.tolist()):
            axis.plot(epochs, each.answers[:, at], linewidth=1.6, label=each.columns[at])
        unit = "mean" if is_mean else "users"
        axis.set_title(f"{each.name}: {unit}", loc="left", fontsize=11)
        if len(each.columns) > 1 and not is_mean:
            axis.legend(loc="best", frameon=False, fontsize=8)
    others[-1].set_xlabel("epoch")
    for axis in (first, *others):
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
        axis.margins(x=0.01)
        tidy(axis)
    try:
        save_figure(figure, path)
        tell(f"wrote {path}")
    except ValueError as error:  # unknown image format
        raise UsageProblem(f"--plot {path}: {error}") from None


def _write_roster(
    path: Path, read: InputTable, events: Events, columns: Mapping[str, Sequence[str]]
) -> None:
    texts = [_first_labels(events, column) for column in columns]
    with replaced_whole(path) as part, part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("user", *columns))
        writer.writerows(zip(read.users, *texts, strict=True))
    named = f" and their {', '.join(columns)}" if columns else ""
    tell(
        f"wrote {path}. With --users, all {len(read.users):,} users in it{named} become public. "
        "Add users without events, so that the list does not tell who has one"
    )


def _first_labels(events: Events, column: str) -> list[str]:
    labels = events.fields[:, events.domain.place_of(column)]
    there = np.flatnonzero(labels)
    order = there[np.lexsort((events.moments[there], events.users[there]))]
    users, first = np.unique(events.users[order], return_index=True)
    found = np.full(events.count, len(events.domain.declared[column]) + 1)
    found[users] = labels[order][first]
    names = ("", *events.domain.declared[column], "other")
    return [names[number] for number in found.tolist()]
