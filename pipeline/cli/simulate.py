"""``dpstream simulate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.inputs import load_input, progress_bar
from pipeline.cli.options import AsJson, JobFile, SkipBadRows
from pipeline.cli.output import (
    guarantee_pairs,
    now,
    number,
    plural,
    say,
    say_json,
    say_pairs,
    say_table,
)
from pipeline.cli.queries import (
    Items,
    NormSub,
    Plot,
    Quantiles,
    Ranges,
    Top,
    plot_answers,
    query_of,
    show_simulations,
)

if TYPE_CHECKING:
    from pipeline.simulate import Simulation

_ROWS_SHOWN = 20


def simulate(
    job: JobFile,
    input: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="The change log: CSV, plain or gzip.")
    ],
    seed: Annotated[
        int | None, typer.Option(help="Makes the run repeatable. Default: new randomness.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Repeat it, on all cores.")] = 1,
    skip_bad_rows: SkipBadRows = False,
    items: Items = None,
    top: Top = None,
    ranges: Ranges = None,
    quantiles: Quantiles = None,
    norm_sub: NormSub = False,
    plot: Plot = None,
    smoothed: Annotated[
        bool,
        typer.Option("--smoothed", help="Also look back at the end, and compare all estimates."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole job in this process, without Kafka, and compare its estimates with the truth."""
    from pipeline.deployed_job import deploy_job
    from pipeline.jobs import load_job
    from pipeline.queries import usual_query
    from pipeline.trials import run_trials

    deployed = deploy_job(load_job(job), deployed_at=now())
    query = query_of(deployed.domain, items, top, ranges, quantiles, norm_sub)
    change_log = load_input(deployed, input, skip_bad_rows)
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
        )
    answering = [each.looked_back() for each in simulations]
    if plot is not None:
        first = answering[0]
        looked_back = bool(first.smoothed)
        plot_answers(plot, deployed, query, first.records, first.truth, smoothed=looked_back)
    if query is not None and as_json:
        from pipeline.query_trials import simulations_json

        say_json(simulations_json(query, answering))
    elif as_json:
        say_json(_to_json(simulations))
    else:
        if query is None:
            query = usual_query(deployed.domain, everything=False)
        if query is not None:
            show_simulations(query, answering)
        else:
            _show_epochs(simulations[0])
        _show(simulations, len(change_log.users))


def _to_json(simulations: list[Simulation]) -> dict[str, Any]:
    from pipeline.simulate import column_errors, coverage, root_mean_square

    first = simulations[0].to_json()
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
    say_table(
        [">epoch", ">estimate", ">± sd", ">95 % low", ">high", ">truth", ">reports", ""],
        map(_row, epochs[::-step][::-1]),
    )
    if step > 1:
        say(f"one epoch in {step} is shown, --json prints all {len(epochs):,}")


def _show(simulations: list[Simulation], users: int) -> None:
    first = simulations[0]
    trials = f", {len(simulations):,} trials, the first one above" if len(simulations) > 1 else ""
    epochs = plural(len(first.records), "epoch")
    say(f"\n{first.job.name}: {plural(users, 'user')}, {epochs}{trials}", "bold")
    say_pairs(_summary(simulations, users))
    say("\nprivacy", "bold")
    say_pairs(guarantee_pairs(first.job.guarantee()))


def _row(epoch: Mapping[str, Any]) -> list[str]:
    numbers = ("estimate", "standard_deviation", "low", "high", "truth", "reports")
    notes = [*([] if epoch["fate"] == "released" else [epoch["fate"]]), *epoch["flags"]]
    return [str(epoch["epoch"]), *(number(epoch[key]) for key in numbers), ", ".join(notes)]


def _summary(simulations: list[Simulation], users: int) -> Iterator[tuple[str, str]]:
    from pipeline.simulate import column_errors, coverage, root_mean_square
    from pipeline.smoothing import BIASED
    from topics.manifests import Fate

    first = simulations[0]
    error, covered = root_mean_square(simulations), coverage(simulations)
    if error is not None and covered is not None:
        yield "root mean squared error", f"{number(error)} users ({error / users:.1%})"
        if first.smoothed:
            for name, other in column_errors(simulations).items():
                if name != "online":
                    label = " (biased)" if name in BIASED else ""
                    yield f"  {name}{label}", f"{number(other)} users ({other / users:.1%})"
        yield "intervals that hold the truth", f"{covered:.1%}, expected are 95 %"
    if first.frozen:
        yield "devices that left out changes", f"{first.frozen:,} ({first.frozen / users:.1%})"
    withheld = sum(record.fate is not Fate.RELEASED for record in first.records)
    if withheld:
        minimum = first.job.shuffle.minimum
        yield "windows withheld", f"{withheld:,}: shuffle.minimum is {plural(minimum, 'device')}"
