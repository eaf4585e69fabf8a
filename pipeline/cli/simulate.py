"""``dpstream simulate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from dpstream.aggregators.cell_window import FOUND
from dpstream.pipeline.cli.answer_lines import NormSub, Plot, plot_answers
from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.estimate_lines import EpochTable
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.inputs import Roster, ToEpoch, load_input, progress_bar
from dpstream.pipeline.cli.item_accuracy_lines import show_accuracies
from dpstream.pipeline.cli.options import (
    AsJson,
    Box,
    Crowd,
    Item,
    JobFile,
    Quantile,
    Range,
    SkipBadRows,
    Top,
)
from dpstream.pipeline.cli.output import (
    guarantee_pairs,
    now,
    number,
    plural,
    say,
    say_json,
    say_pairs,
    tell,
)
from dpstream.pipeline.cli.simulated_lines import show_simulations
from dpstream.pipeline.devices.item_log import ItemLog, ValueLog
from dpstream.pipeline.devices.produce import enrolment, value_notices
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.results.asked import Asked, check_askable, make_query, usual_query
from dpstream.pipeline.results.coverage import (
    coverage_lines,
    coverage_over_time,
    expected_coverage,
)
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.questions import Query, Question
from dpstream.pipeline.results.smoothing import BIASED
from dpstream.pipeline.simulation.item_accuracy import mean_accuracy
from dpstream.pipeline.simulation.query_trials import simulations_json
from dpstream.pipeline.simulation.simulate import (
    Simulation,
    column_errors,
    coverage,
    root_mean_square,
)
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.pipeline.values.relative_errors import relative_error_lines
from dpstream.randomizers.row_errors import MOST_HELD, OTHERS
from dpstream.topics.manifests import Fate

_ROWS_SHOWN = 20


@takes_input_flags
def simulate(
    job: JobFile,
    input: Annotated[
        Path,
        typer.Option("--input", metavar="FILE", help="The change log: CSV, JSON lines or Parquet."),
    ],
    seed: Annotated[
        int | None, typer.Option(help="Makes the run repeatable. Default: new randomness.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Repeat it, on all cores.")] = 1,
    users: Roster = None,
    to_epoch: ToEpoch = None,
    skip_bad_rows: SkipBadRows = False,
    item: Item = None,
    top: Top = None,
    range_: Range = None,
    quantile: Quantile = None,
    box: Box = None,
    crowd: Crowd = None,
    norm_sub: NormSub = False,
    plot: Plot = None,
    smoothed: Annotated[
        bool,
        typer.Option("--smoothed", help="Also look back at the end, and compare all estimates."),
    ] = False,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Run a whole job in this process, without Kafka, and compare its estimates with the truth."""
    # The stage's noise depends on the deployment: one that a seed repeats is the same each time.
    deployment = None if seed is None else bytes(IDENTIFIER_BYTES)
    loaded = load_job(job)
    if loaded.devices is not None:
        # What reports say, and what becomes of them, is the same.
        tell("devices that report for themselves are simulated as if a producer stood for them")
        loaded = loaded.model_copy(update={"devices": None})
    deployed = deploy_job(loaded, deployed_at=now(), deployment=deployment)
    asked = Asked(item, top, range_, quantile, box, crowd)
    query, question = None, None
    if deployed.protocol_entry.per_epoch:
        question = asked.question(deployed.domain)
        if question is not None:
            check_askable(deployed, question)
        if norm_sub or smoothed:
            raise UsageProblem(
                f"--norm-sub and --smoothed are not for {deployed.protocol}, whose epochs stand "
                "alone"
            )
    else:
        query = make_query(deployed.domain, asked, norm_sub=norm_sub)
    form = flags.form_of(deployed)
    change_log = load_input(
        deployed, input, users, to_epoch, skip_bad_rows=skip_bad_rows, form=form
    )
    with progress_bar() as progress:
        single = trials == 1
        bar = progress.add_task("simulating", total=change_log.last_epoch if single else trials)

        def advance() -> None:
            progress.advance(bar)

        simulations = run_trials(
            deployed,
            change_log,
            trials,
            seed=seed,
            on_epoch=advance,
            on_trial=(lambda: None) if single else advance,
            smooth=smoothed,
            question=question,
        )
    if isinstance(change_log, ItemLog):
        if plot is not None:
            _plot_items(plot, simulations[0], change_log, question)
        if as_json:
            say_json(_to_json(simulations))
        else:
            show_accuracies(simulations)
            _show(simulations, change_log)
        return
    answering = [each.looked_back() for each in simulations]
    if plot is not None:
        first = answering[0]
        said = "smoothed" if first.smoothed else ""
        plot_answers(plot, deployed, query, first.records, first.truth, said=said)
    if query is not None and as_json:
        say_json(simulations_json(query, answering))
    elif as_json:
        say_json(_to_json(simulations))
    else:
        if query is None:
            query = usual_query(deployed.domain)
        if query is not None:
            expected = expected_coverage(deployed, change_log, len(answering))
            show_simulations(query, answering, expected)
        else:
            _show_epochs(simulations[0])
        _show(simulations, change_log)


def _to_json(simulations: list[Simulation]) -> dict[str, Any]:
    first = simulations[0].to_json()
    if simulations[0].accuracies:
        return {
            **first,
            "rmse": root_mean_square(simulations),
            **json_fields(mean_accuracy([each.accuracies for each in simulations])),
            "coverage": coverage(simulations),
            "trials": len(simulations),
        }
    if len(simulations) == 1:
        return first
    return {
        **first,
        "rmse": root_mean_square(simulations),
        **({"rmse_by_column": column_errors(simulations)} if "rmse_by_column" in first else {}),
        "coverage": coverage(simulations),
        "trials": len(simulations),
    }


def _show_epochs(first: Simulation) -> None:
    epochs = first.to_json()["epochs"]
    step = -(-len(epochs) // _ROWS_SHOWN)
    columns = (">estimate", ">± sd", ">95 % low", ">high", ">truth", ">reports", "")
    EpochTable(first.job, columns).say(map(_row, epochs[::-step][::-1]))
    if step > 1:
        say(f"one epoch in {step} is shown, --json prints all {len(epochs):,}")


def _show(simulations: list[Simulation], log: ValueLog) -> None:
    first, users = simulations[0], len(log.users)
    trials = f", {len(simulations):,} trials, the first one above" if len(simulations) > 1 else ""
    epochs = plural(len(first.records), "epoch")
    say(f"\n{first.job.name}: {plural(users, 'user')}, {epochs}{trials}", "bold")
    say_pairs(_summary(simulations, log))
    flags = sorted({flag for record in first.records for flag in record.flags})
    explained = (f"{flag} means: {flag_words(first.job, flag)}" for flag in flags)
    for notice in (*explained, *value_notices(log, first.job.domain)):
        say(f"\nnote: {notice}")
    say("\nprivacy", "bold")
    say_pairs([*guarantee_pairs(first.job.guarantee), ("enrolled", enrolment(log))])


def _item_summary(simulations: list[Simulation], users: int) -> Iterator[tuple[str, str]]:
    mean = mean_accuracy([each.accuracies for each in simulations])
    if mean.mean_absolute_error is None:
        return
    yield "looked at", f"up to {MOST_HELD} items most held and {OTHERS} others, of every epoch"
    share = f"{mean.mean_absolute_error / users:.2%}"
    predicted = number(mean.predicted_error)
    yield (
        "mean absolute error, not below 0",
        f"{number(mean.mean_absolute_error)} users ({share}), predicted {predicted}",
    )
    yield "  negative ones kept", f"{number(mean.unclipped_error)} users"
    yield "largest error", f"{number(mean.max_error)} users"
    if mean.recall is not None:
        yield (
            "found of the most held",
            f"{mean.recall:.1%} of {FOUND}, or of all where fewer are held",
        )


def _plot_items(
    path: Path, simulation: Simulation, log: ItemLog, question: Question | None
) -> None:
    job, records = simulation.job, simulation.records
    if question is None or question.selects or question.of_tree:
        query = None
    else:
        query = Query(job.domain, question)
    truths = log.truths(job.domain)
    known = {record.epoch: truths.of(record.epoch, record.estimate) for record in records}
    plot_answers(path, job, query, records, known)


def _row(epoch: Mapping[str, Any]) -> list[str]:
    numbers = ("estimate", "standard_deviation", "low", "high", "truth", "reports")
    notes = [*([] if epoch["fate"] == "released" else [epoch["fate"]]), *epoch["flags"]]
    return [str(epoch["epoch"]), *(number(epoch[key]) for key in numbers), ", ".join(notes)]


def _summary(simulations: list[Simulation], log: ValueLog) -> Iterator[tuple[str, str]]:
    first, users = simulations[0], len(log.users)
    error, covered = root_mean_square(simulations), coverage(simulations)
    if first.accuracies:
        yield from _item_summary(simulations, users)
    if error is not None and covered is not None:
        yield "root mean squared error", f"{number(error)} users ({error / users:.1%})"
        yield from relative_error_lines(error, users)
        if first.smoothed:
            for name, other in column_errors(simulations).items():
                if name != "online":
                    label = " (biased)" if name in BIASED else ""
                    yield f"  {name}{label}", f"{number(other)} users ({other / users:.1%})"
        expected = expected_coverage(first.job, log, len(simulations))
        yield "intervals that hold the truth", f"{covered:.1%}; {expected}"
        by_epoch = chain.from_iterable(each.covered_by_epoch() for each in simulations)
        yield from coverage_lines(first.job, coverage_over_time(by_epoch), log)
    if first.frozen and first.job.change_limit is not None:
        yield "devices that left out changes", f"{first.frozen:,} ({first.frozen / users:.1%})"
    withheld = sum(record.fate is not Fate.RELEASED for record in first.records)
    if withheld:
        minimum = first.job.shuffle.minimum
        yield "windows withheld", f"{withheld:,}: shuffle.minimum is {plural(minimum, 'device')}"
