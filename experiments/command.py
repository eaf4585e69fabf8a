"""Command line of ``python -m experiments``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from dpstream.pipeline.cli.command_errors import UsageProblem, run_command
from dpstream.pipeline.cli.commands import PlainCommand
from dpstream.pipeline.cli.inputs import progress_bar
from dpstream.pipeline.cli.options import AsJson
from dpstream.pipeline.cli.output import (
    number,
    plural,
    print_json,
    print_pairs,
    print_table,
    print_text,
    tell,
)
from dpstream.pipeline.plots import PlotError
from dpstream.pipeline.results.smoothing import BIASED
from dpstream.pipeline.state import FolderLock
from experiments.evaluation.curves import write_curves
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.experiment import Case, Experiment, load_experiment
from experiments.evaluation.journal import Journal
from experiments.evaluation.pending_trials import (
    Planned,
    check_inputs,
    planned_trials,
    run_pending,
    unfinished,
)
from experiments.evaluation.pictures import write_pictures
from experiments.evaluation.plots import write_plots
from experiments.evaluation.results import (
    Finished,
    Line,
    loss_differs_from_request,
    summarize,
    variables,
    write_csv,
)
from experiments.evaluation.unnamed_producer import MOST_TOPIC_BYTES
from experiments.shipped import PROGRAMS, Shipped, listed, shipped_experiments

JOURNAL = "trials.jsonl"
TABLE = "results.csv"
PROGRAM = "python -m experiments"


def build_command() -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(
        cls=PlainCommand,
        epilog=f"Example: {PROGRAM} theory-epsilon --seeds 5",
        context_settings={"help_option_names": ["-h", "--help"]},
    )(run)
    return get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(build_command(), given or ["--list"], PROGRAM)


def _print_list(print_and_exit: bool) -> None:
    if print_and_exit:
        print_pairs((each.name, _in_a_sentence(each)) for each in listed())
        programs = "; ".join(each.command for each in PROGRAMS.values())
        print_text(f"\nRun one: {PROGRAM} NAME. Separate programs: {programs}", whole=True)
        print_text(f"Options: {PROGRAM} --help")
        raise typer.Exit


def _in_a_sentence(one: Shipped) -> str:
    return f"{one.title} ({one.reproduces})" if one.reproduces else one.title


def run(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name printed by --list, or path of an experiment file (YAML)."
        ),
    ],
    list_them: Annotated[
        bool,
        typer.Option(
            "--list", callback=_print_list, is_eager=True, help="List the experiments and exit."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for all results. Default: NAME-results."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds. Default: as in the file.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. Default: one per core.")
    ] = None,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves",
            help="Plot the estimates of seed 1 with confidence bands, for each case. Sets of items "
            "are always plotted.",
        ),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the trials stored in FOLDER.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure protocols on data: run an experiment with all parameters and seeds on all cores.

    Trials already stored in FOLDER are not repeated, so a stopped experiment resumes.
    """
    loaded = load_experiment(_file_of(experiment))
    if seeds is not None:
        loaded = replace(loaded, seeds=seeds)
    folder = Path(f"{loaded.name}-results") if output is None else output
    folder.mkdir(parents=True, exist_ok=True)
    with FolderLock(folder, f"{PROGRAM} {loaded.name}"):
        if restart:
            (folder / JOURNAL).unlink(missing_ok=True)
        planned = planned_trials(loaded)
        total = len({one.key for one in planned})
        with Journal(folder / JOURNAL) as journal:
            pending = unfinished(planned, journal)
            if len(pending) < total:
                done = total - len(pending)
                tell(f"{done:,} of {plural(total, 'trial')} are already in {folder}")
            for warning in check_inputs(pending):
                tell(warning)
            try:
                _run(pending, journal, processes, total)
            except KeyboardInterrupt:
                done = total - len(unfinished(planned, journal))
                tell(
                    f"stopped: {done:,} of {plural(total, 'trial')} are stored in {folder}. To "
                    "continue, run the same command again"
                )
                raise
            finished = [
                Finished(one.case, one.seed, trial)
                for one in planned
                if (trial := journal.get(one.key)) is not None
            ]
        write_csv(loaded.name, finished, folder / TABLE)
        lines = summarize(finished)
        files = [folder / TABLE, *_plots(loaded.name, lines, loaded.cases, curves, folder)]
    if as_json:
        print_json(
            {
                "experiment": loaded.name,
                "seeds": loaded.seeds,
                "results": [line.to_json() for line in lines],
                "files": list(map(str, files)),
            }
        )
    else:
        _show(loaded, finished, lines, files)


def _run(pending: list[Planned], journal: Journal, processes: int | None, total: int) -> None:
    with progress_bar() as progress:
        bar = progress.add_task("evaluating", total=total, completed=total - len(pending))
        run_pending(pending, journal, processes=processes, on_trial=lambda: progress.advance(bar))


def _file_of(experiment: str) -> Path:
    path, name, shipped = Path(experiment), experiment.removesuffix(".yaml"), shipped_experiments()
    if path.exists() and not path.is_dir():
        return path
    if name in shipped:
        return shipped[name]
    if program := PROGRAMS.get(name.replace("-", "_")):
        raise UsageProblem(f"{experiment} is a separate program. Run it: {program.command}")
    raise UsageProblem(f"there is no file {experiment}; experiments: {', '.join(shipped)}")


def _plots(
    name: str, lines: Sequence[Line], cases: Sequence[Case], curves: bool, folder: Path
) -> list[Path]:
    drawn = [case for case in cases if curves and not case.of_sets]
    of_sets = [
        case
        for case in cases
        # A single one of many random draws does not represent the data.
        if case.of_sets and case.drawn and not isinstance(case.source, DrawnItems)
    ]
    try:
        return [
            *write_plots(name, lines, folder),
            *write_curves(drawn, folder),
            *write_pictures(of_sets, folder),
        ]
    except PlotError as error:
        tell(str(error))
        return []


def _show(
    experiment: Experiment,
    finished: Sequence[Finished],
    lines: Sequence[Line],
    files: Sequence[Path],
) -> None:
    measures: tuple[str, ...] = (
        _MEASURES_OF_SETS if any(line.case.of_sets for line in lines) else _MEASURES
    )
    if drawn := any(isinstance(line.case.source, DrawnItems) for line in lines):
        measures += _MEASURES_OF_MESSAGES
    if any(line.selected is not None for line in lines):
        measures += _MEASURES_OF_SELECTION
    if not all(line.through_topics for line in lines):
        measures += _MEASURES_OF_TOPICS
    compared = [
        name for name in experiment.references if any(name in line.references for line in lines)
    ]
    varying = variables(lines)
    with_loss = any(map(loss_differs_from_request, lines))
    names = list(dict.fromkeys(key for variable in varying for key in variable))
    print_table(
        [
            *(key if key in ("data", "label", "estimate") else f">{key}" for key in names),
            *([">loss"] if with_loss else []),
            *(f">{measure}" for measure in (*measures, *compared)),
        ],
        [
            [
                *(_cell(variable.get(key)) for key in names),
                *([_loss(line)] if with_loss else []),
                *(_measured(line, measure) for measure in measures),
                *(number(line.references.get(name)) for name in compared),
            ]
            for line, variable in zip(lines, varying, strict=True)
        ],
    )
    trials, seeds = plural(len(finished), "trial"), plural(experiment.seeds, "seed")
    print_text(f"\n{experiment.name}: {trials}, {seeds} each", "bold")
    pairs = [(measure, said) for measure in measures if (said := _MEANING.get(measure))]
    pairs += [(name, experiment.references[name]) for name in compared]
    if with_loss:
        pairs.insert(0, ("loss", "exact epsilon for a user's whole stream"))
    if any(line.estimate in BIASED for line in lines):
        pairs.append(
            (
                "biased",
                "clipped or shrunk estimates: smaller errors, but biased",
            )
        )
    messages = {line.predicted_messages for line in lines if not drawn}
    if sent := sorted(each for each in messages if each is not None):
        pairs.append(("messages per user", ", ".join(f"{each:,.1f}" for each in sent)))
    suppressed = sum(one.trial.suppressed for one in finished)
    if suppressed:
        pairs.append(("suppressed windows", f"{suppressed:,}: fewer devices than shuffle.minimum"))
    most_exhausted = max((line.exhausted for line in lines), default=0.0)
    if most_exhausted:
        pairs.append(("users who dropped changes", f"at most {most_exhausted:.1%}"))
    pairs += [("written" if place == 0 else "", str(path)) for place, path in enumerate(files)]
    print_pairs(pairs)


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,g}"
    return "" if value is None else str(value)


def _loss(line: Line) -> str:
    return "none" if line.epsilon_stream is None else f"{line.epsilon_stream:.3g}"


_MEASURES = ("rmse", "predicted", "mean", "covered")
_MEASURES_OF_SETS = ("error", "largest", "rmse", "predicted", "covered")
_MEASURES_OF_MESSAGES = ("messages", "planned")
_MEASURES_OF_SELECTION = ("selected", "expected")
_MEASURES_OF_TOPICS = ("stages",)
_MEANING = {
    "error": "mean absolute error in users (for quantiles: rank error in users)",
    "rmse": "root mean squared error over all epochs and seeds, in users",
    "mean": "root mean squared error of each seed, averaged over the seeds",
    "messages": "messages per user, including dummies; then the planned number",
    "selected": "trials that identify the item with the most users; then the expected probability",
    "stages": "no: reports went from the devices directly to the aggregator, without the codec "
    f"and the stages, because their topics would exceed {MOST_TOPIC_BYTES >> 30} GiB",
    "covered": (
        "intervals that contain the ground truth: 95 % expected over many trials, as errors within "
        "a trial are correlated"
    ),
}


def _measured(line: Line, measure: str) -> str:
    shares = {
        "covered": line.coverage,
        "selected": line.selected,
        "expected": line.predicted_selected,
    }
    if measure in shares:
        share = shares[measure]
        return "-" if share is None else f"{share:.1%}"
    found = {
        "error": line.mean_abs_error,
        "largest": line.max_error,
        "rmse": line.rmse,
        "predicted": line.predicted_rmse,
        "mean": line.mean_rmse,
    }
    if measure in _MEASURES_OF_TOPICS:
        return "yes" if line.through_topics else "no"
    if measure in _MEASURES_OF_MESSAGES:
        sent = line.messages if measure == "messages" else line.predicted_messages
        return "-" if sent is None else f"{sent:,.2f}" if sent < 10 else f"{sent:,.1f}"
    return number(found[measure])
