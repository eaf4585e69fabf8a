"""The command ``dpstream simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpstream.pipeline.cli.answer_lines import NormSub, Plot, plot_answers
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.input_flags import InputFlags, takes_input_flags
from dpstream.pipeline.cli.inputs import ToEpoch, UserList, load_input, progress_bar
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
from dpstream.pipeline.cli.output import now, print_json, tell
from dpstream.pipeline.cli.simulated_lines import show_item_simulations, show_simulations
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, deploy_job
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.json_values import json_fields
from dpstream.pipeline.results.counts_queries import CountsQuery, Query
from dpstream.pipeline.results.epoch_counts import counts_windows
from dpstream.pipeline.results.query_options import (
    QueryOptions,
    check_supported,
    default_query,
    make_query,
)
from dpstream.pipeline.simulation.item_accuracy import compares_items, mean_accuracy
from dpstream.pipeline.simulation.simulated_job import (
    Simulation,
    column_errors,
    coverage,
    root_mean_square,
)
from dpstream.pipeline.simulation.trials import run_trials, simulations_json

_ROWS_SHOWN = 20


@takes_input_flags
def simulate(
    job: JobFile,
    input: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Change log, or events: CSV, JSON lines or Parquet.",
        ),
    ],
    seed: Annotated[
        int | None, typer.Option(help="Seed for a repeatable run. Default: new randomness.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Number of repetitions, run on all cores.")
    ] = 1,
    users: UserList = None,
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
        typer.Option(
            "--smoothed", help="Also smooth retrospectively at the end, and compare all estimates."
        ),
    ] = False,
    as_json: AsJson = False,
    *,
    flags: InputFlags,
) -> None:
    """Simulate a job without Kafka, and compare its estimates with the ground truth.

    Everything runs in this process.
    """
    # The stage's noise depends on the deployment, which a seed must therefore fix.
    deployment = None if seed is None else bytes(IDENTIFIER_BYTES)
    loaded = load_job(job)
    if loaded.devices is not None:
        # Contents and processing of reports are the same.
        tell("devices that report by themselves are simulated like devices of a producer")
        loaded = loaded.model_copy(update={"devices": None})
    deployed = deploy_job(loaded, deployed_at=now(), deployment=deployment)
    query_options = QueryOptions(item, top, range_, quantile, box, crowd)
    query, counts_query = None, None
    if counts_windows(deployed):
        counts_query = query_options.counts_query(deployed.domain)
        if counts_query is not None:
            check_supported(deployed, counts_query)
        if norm_sub or smoothed:
            raise UsageProblem(
                f"--norm-sub and --smoothed do not apply to {deployed.name}, whose epochs are "
                "independent or searched together"
            )
    else:
        query = make_query(deployed.domain, query_options, norm_sub=norm_sub)
    input_format = flags.format_of(deployed)
    change_log = load_input(
        deployed, input, users, to_epoch, skip_bad_rows=skip_bad_rows, input_format=input_format
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
            counts_query=counts_query,
        )
    if compares_items(deployed, change_log):
        if plot is not None:
            _plot_items(plot, simulations[0], change_log, counts_query)
        if as_json:
            print_json(_to_json(simulations))
        else:
            show_item_simulations(simulations, change_log)
        return
    answering = [each.smoothed_copy() for each in simulations]
    if plot is not None:
        first = answering[0]
        label = "smoothed" if first.smoothed else ""
        plot_answers(plot, deployed, query, first.records, first.ground_truth, label=label)
    if query is not None and as_json:
        print_json(simulations_json(query, answering))
    elif as_json:
        print_json(_to_json(simulations))
    else:
        show_simulations(query or default_query(deployed.domain), simulations, change_log)


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


def _plot_items(
    path: Path, simulation: Simulation, log: ValueLog, counts_query: CountsQuery | None
) -> None:
    job, records = simulation.job, simulation.records
    if counts_query is None or counts_query.selects or counts_query.of_tree:
        query = None
    else:
        query = Query(job.domain, counts_query)
    ground_truths = log.ground_truths(job.domain)
    known = {record.epoch: ground_truths.of(record.epoch, record.estimate) for record in records}
    plot_answers(path, job, query, records, known)
