"""The commands of ``dpstream``: each has an entry in `COMMANDS`, and is imported when used.

Command modules can therefore import what they need at the top without slowing the list of commands.
Commands whose modules are not installed are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from dpstream.pipeline.cli import loading


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Description of a command, available without importing its module.

    Attributes:
        panel: Section in the list of commands.
        target: ``module:name`` of the command's function, or of a `typer.Typer` with subcommands.
        summary: First paragraph of the command's help.
        example: Arguments in an example; a `typer.Typer` has its own examples.
    """

    panel: str
    target: str
    summary: str
    example: str = ""

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]


_FIRST, _JOBS, _RESULTS, _PRIVACY = "First steps", "Jobs", "Results", "Privacy"
COMMANDS = {
    "demo": CommandEntry(
        _FIRST,
        "up:demo",
        "Count 28,785 real students by week, with a privacy limit for each of them.",
        "--rate 10",
    ),
    "init": CommandEntry(
        _FIRST,
        "init:init",
        "Write a job file for an input, after three questions.",
        "events.csv --count active --public os --trust none",
    ),
    "up": CommandEntry(
        _FIRST,
        "up:up",
        "Run a whole job on this machine; compare its estimates with the ground truth.",
        "students.yaml --input students.csv.gz",
    ),
    "plan": CommandEntry(
        _FIRST,
        "plan:plan",
        "Predict the privacy and accuracy of a job, before any data exists.",
        "students.yaml --users 28785",
    ),
    "preview": CommandEntry(
        _FIRST,
        "preview:preview",
        "Show what a file of events means for a job's measures, before anything is spent.",
        "app.yaml --input events.csv --plot events.png",
    ),
    "simulate": CommandEntry(
        _FIRST,
        "simulate:simulate",
        "Simulate a job without Kafka, and compare its estimates with the ground truth.",
        "students.yaml --input students.csv.gz --seed 1",
    ),
    "keygen": CommandEntry(
        _JOBS,
        "keygen:keygen",
        "Create key pairs for sealed reports. Run it at the party that opens them.",
        "aggregate stage-a",
    ),
    "erase-keys": CommandEntry(
        _JOBS,
        "erase_keys:erase_keys",
        "Erase expired private keys: reports sealed to them can no longer be opened.",
        "--yes",
    ),
    "deploy": CommandEntry(
        _JOBS,
        "deploy:deploy",
        "Create a job's topics and start a deployment. Starts the local broker if needed.",
        "students.yaml --dry-run",
    ),
    "run": CommandEntry(
        _JOBS,
        "run:run",
        "Run a worker for a job's stage, or one per job, until Ctrl-C or SIGTERM.",
        "shuffle students",
    ),
    "produce": CommandEntry(
        _JOBS,
        "produce:produce",
        "Randomize the values of a change log and send the reports, epoch by epoch.",
        "students --input students.csv.gz --rate 10",
    ),
    "collect": CommandEntry(
        _JOBS,
        "collect:collect",
        "Receive reports from devices over HTTP and write them to Kafka, until Ctrl-C.",
        "--bind 0.0.0.0:8300 --allow-origin https://app.example.org",
    ),
    "record": CommandEntry(
        _JOBS,
        "record:record",
        "Record a job's released windows, manifests, partials and estimates as Parquet.",
        "students --output students-recording",
    ),
    "replay": CommandEntry(
        _JOBS,
        "replay:replay",
        "Aggregate a job's windows again, under a new name. Costs no epsilon.",
        "students --new-name students-again --dry-run",
    ),
    "pause": CommandEntry(
        _JOBS,
        "phases:pause",
        "Stop a job's workers through their supervisors. Producers continue.",
        "students",
    ),
    "drain": CommandEntry(
        _JOBS,
        "phases:drain",
        "Finalize and publish open epochs, then let the workers end.",
        "students --timeout 10min",
    ),
    "resume": CommandEntry(
        _JOBS,
        "phases:resume",
        "Restart the workers of a paused or drained job through their supervisors.",
        "students",
    ),
    "undeploy": CommandEntry(
        _JOBS,
        "deploy:undeploy",
        "End a deployment. Topics and estimates remain unless --delete-topics is given.",
        "students --delete-topics",
    ),
    "kafka": CommandEntry(
        _JOBS,
        "kafka:app",
        "Manage the local broker: a real Apache Kafka, without Docker or Java.",
    ),
    "acl": CommandEntry(
        _PRIVACY,
        "acl:acl",
        "Print the minimal Kafka ACLs for each role of a job; --apply adds them.",
        "students --role shuffle --principal shuffle=User:ann",
    ),
    "audit": CommandEntry(
        _PRIVACY,
        "audit:audit",
        "Compare observed and claimed privacy loss. Exits with 1 if the observed loss is larger.",
        "future_rand --quick",
    ),
    "ledger": CommandEntry(
        _PRIVACY,
        "ledger:ledger",
        "Show privacy charges, what was released for them, and remaining budgets.",
        "students --verify",
    ),
    "budget": CommandEntry(
        _PRIVACY,
        "budget:budget",
        "Show, set or remove the limit on a population's total privacy charges.",
        'students --epsilon 8 --reason "asked again in June"',
    ),
    "serve": CommandEntry(
        _RESULTS,
        "serve:serve",
        "Serve a live page and a JSON API for all jobs, until Ctrl-C or SIGTERM.",
        "students --port 8765",
    ),
    "password": CommandEntry(
        _RESULTS,
        "serve:password",
        "Set the password of the live page, for dpstream serve --password-file FILE.",
        "page.password",
    ),
    "estimates": CommandEntry(
        _RESULTS,
        "estimates:estimates",
        "Print published estimates: for items the largest, for numbers the quartiles.",
        "students --follow --format csv",
    ),
    "query": CommandEntry(
        _RESULTS,
        "query:query",
        "Query windows of a job with independent epochs: items, ranges, boxes, quantiles.",
        "words --epoch 3 --top 10",
    ),
    "diff": CommandEntry(
        _RESULTS,
        "diff:diff",
        "Compare two jobs with the same protocol and domain. Exits with 1 if they differ.",
        "students students-replay",
    ),
    "list": CommandEntry(_RESULTS, "jobs:list_jobs", "List the deployed jobs.", "--json"),
    "status": CommandEntry(
        _RESULTS,
        "status:status",
        "Show job status. Exits with 1 if any job requires action.",
        "students",
    ),
    "producers": CommandEntry(
        _RESULTS,
        "producers:producers",
        "List the producers of a job, or retire one permanently.",
        "students --retire gateway-2",
    ),
    "dead-letters": CommandEntry(
        _RESULTS,
        "dead_letters:dead_letters",
        "Count rejected records by reason, and list the latest.",
        "students --redrive",
    ),
}


def installed_commands() -> dict[str, CommandEntry]:
    modules = {module.name for module in iter_modules([str(Path(__file__).parent)])}
    return {name: entry for name, entry in COMMANDS.items() if entry.module in modules}


def _with_bare_flags(params: list[Any]) -> list[Any]:
    """Remove the value type from the help of flags, which take no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _with_bare_flags(super().get_params(ctx))


class PlainGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _with_bare_flags(super().get_params(ctx))


class LazyCommand(PlainCommand):
    """Command that can be listed without its module; parsing or running it imports the module."""

    def __init__(self, name: str, entry: CommandEntry) -> None:
        super().__init__(name, help=entry.summary, rich_help_panel=entry.panel)
        self._entry = entry

    @cached_property
    def loaded(self) -> Any:
        assert self.name is not None
        return _load(self.name, self._entry)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        return self.loaded.make_context(*arguments, **extra)


def build_command() -> TyperGroup:
    app = typer.Typer(
        name="dpstream",
        cls=PlainGroup,
        help="Continual, differentially private statistics from Kafka streams.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_of_all_commands)
    group = get_group(app)
    group.commands = {
        name: LazyCommand(name, entry) for name, entry in installed_commands().items()
    }
    return group


def _print_version(requested: bool) -> None:
    if requested:
        # Imported here: it also imports the email package.
        from importlib.metadata import version as version_of

        print(f"dpstream {version_of('dpstream')}")
        raise typer.Exit


def _of_all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    pass


def _load(name: str, entry: CommandEntry) -> Any:
    attribute = entry.target.partition(":")[2]
    with loading():
        target = getattr(import_module(f"dpstream.pipeline.cli.{entry.module}"), attribute)
    if isinstance(target, typer.Typer):
        target.info.cls = PlainGroup
        for command in target.registered_commands:
            command.cls = PlainCommand
        return get_group(target)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(
        name,
        cls=PlainCommand,
        help=_flowing(target),
        epilog=f"Example: dpstream {name} {entry.example}",
    )(target)
    return get_command(app)


def _flowing(command: Callable[..., None]) -> str:
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
