"""The command ``dpstream``: parses, calls what does the work, prints.

Modules that take long to import are imported inside the commands, so that ``--help`` is quick.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence

import typer

from pipeline.cli import (
    dead_letters,
    deploy,
    diff,
    evaluate,
    jobs,
    kafka,
    phases,
    plan,
    produce,
    query,
    record,
    replay,
    run,
    serve,
    simulate,
    status,
    up,
    watch,
)
from pipeline.cli.errors import run_command


def build_app() -> typer.Typer:
    """The command line, ready to be run."""
    app = typer.Typer(
        name="dpstream",
        help="Continual, differentially private statistics from Kafka streams.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def add(panel: str, command: Callable[..., None], name: str, example: str) -> None:
        app.command(
            name,
            rich_help_panel=panel,
            help=_flowing(command),
            epilog=f"Example: dpstream {name} {example}",
        )(command)

    add("First steps", up.demo, "demo", "--rate 10")
    add("First steps", up.up, "up", "students.yaml --input students.csv.gz")
    add("First steps", plan.plan, "plan", "students.yaml --users 28785")
    add(
        "First steps",
        simulate.simulate,
        "simulate",
        "students.yaml --input students.csv.gz --seed 1",
    )
    add("First steps", evaluate.evaluate, "evaluate", "theory-epsilon --seeds 5")
    add("Jobs", deploy.deploy, "deploy", "students.yaml --dry-run")
    add("Jobs", run.run, "run", "shuffle students")
    add("Jobs", produce.produce, "produce", "students --input students.csv.gz --rate 10")
    add("Jobs", record.record, "record", "students --output students-recording")
    add("Jobs", replay.replay, "replay", "students --as students-again --dry-run")
    add("Jobs", phases.pause, "pause", "students")
    add("Jobs", phases.drain, "drain", "students --timeout 10min")
    add("Jobs", phases.resume, "resume", "students")
    add("Jobs", deploy.undeploy, "undeploy", "students --delete-topics")
    add("Results", serve.serve, "serve", "students --port 8765")
    add("Results", watch.estimates, "estimates", "students --follow --format csv")
    add("Results", query.query, "query", "words --epoch 3 --top 10")
    add("Results", diff.diff, "diff", "students students-replay")
    add("Results", jobs.list_jobs, "list", "--json")
    add("Results", status.status, "status", "students")
    add("Results", watch.producers, "producers", "students --retire gateway-2")
    add("Results", dead_letters.dead_letters, "dead-letters", "students --redrive")
    app.add_typer(kafka.app, name="kafka", rich_help_panel="Jobs")
    return app


def _flowing(command: Callable[..., None]) -> str:
    """What its docstring says, a line a paragraph: terminals are not as wide as the source."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default; returns the exit code."""
    return run_command(build_app(), sys.argv[1:] if arguments is None else arguments)
