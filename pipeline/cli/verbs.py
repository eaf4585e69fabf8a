"""The verbs of ``dpstream``: one line in `VERBS` for each, and its module, imported when it is run.

So modules of verbs import what they need at their top, and the list of verbs stays quick. A verb
whose module was deleted, with the leaf that it is of, is left out.
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
class Verb:
    """A verb, as far as it is known without its module.

    Attributes:
        panel: of the list of verbs.
        target: ``module:name`` of a function, or of a `typer.Typer` with verbs of its own.
        summary: the first paragraph of its help.
        example: arguments; those of a `typer.Typer` have examples themselves.
    """

    panel: str
    target: str
    summary: str
    example: str = ""

    @property
    def module(self) -> str:
        """The module of its target."""
        return self.target.partition(":")[0]


_FIRST, _JOBS, _RESULTS, _PRIVACY = "First steps", "Jobs", "Results", "Privacy"
VERBS = {
    "demo": Verb(
        _FIRST,
        "up:demo",
        "Count 28,785 real students, week by week, without knowing about any of them.",
        "--rate 10",
    ),
    "up": Verb(
        _FIRST,
        "up:up",
        "Run a job on this machine from its deployment to its last estimate, beside the truth.",
        "students.yaml --input students.csv.gz",
    ),
    "plan": Verb(
        _FIRST,
        "plan:plan",
        "Say what a job promises and how accurate it will be, before there are any data.",
        "students.yaml --users 28785",
    ),
    "simulate": Verb(
        _FIRST,
        "simulate:simulate",
        "Run a whole job in this process, without Kafka, and compare its estimates with the truth.",
        "students.yaml --input students.csv.gz --seed 1",
    ),
    "keygen": Verb(
        _JOBS,
        "keygen:keygen",
        "Make key pairs for sealed reports, each by the party that is to hold the private key.",
        "aggregate stage-a",
    ),
    "erase-keys": Verb(
        _JOBS,
        "erase_keys:erase_keys",
        "Erase private keys whose turn is over: nobody can open then what was sealed to them.",
        "--yes",
    ),
    "deploy": Verb(
        _JOBS,
        "deploy:deploy",
        "Create a job's topics and begin a new deployment. Starts the local broker if need be.",
        "students.yaml --dry-run",
    ),
    "run": Verb(
        _JOBS,
        "run:run",
        "Run one worker of a stage, or one for every job, until told to stop (Ctrl-C, SIGTERM).",
        "shuffle students",
    ),
    "produce": Verb(
        _JOBS,
        "produce:produce",
        "Randomize the values of a change log and send the reports, epoch by epoch.",
        "students --input students.csv.gz --rate 10",
    ),
    "collect": Verb(
        _JOBS,
        "collect:collect",
        "Take reports of devices over HTTP, and write them to Kafka, until told to stop (Ctrl-C).",
        "--bind 0.0.0.0:8300 --allow-origin https://app.example.org",
    ),
    "record": Verb(
        _JOBS,
        "record:record",
        "Record a job: released windows, manifests, partials and estimates, as Parquet.",
        "students --output students-recording",
    ),
    "replay": Verb(
        _JOBS,
        "replay:replay",
        "Aggregate the windows of a job again, under a new name: it costs no epsilon.",
        "students --as students-again --dry-run",
    ),
    "pause": Verb(
        _JOBS,
        "phases:pause",
        "Have supervisors end a job's workers. Producers go on; nothing is lost within retention.",
        "students",
    ),
    "drain": Verb(
        _JOBS,
        "phases:drain",
        "Decide what is open with the producers that are in, publish it, and let the workers end.",
        "students --timeout 10min",
    ),
    "resume": Verb(
        _JOBS,
        "phases:resume",
        "Have supervisors run the workers of a job that was paused or drained.",
        "students",
    ),
    "undeploy": Verb(
        _JOBS,
        "deploy:undeploy",
        "End a deployment. Its topics, with the estimates, stay unless they are to be deleted.",
        "students --delete-topics",
    ),
    "kafka": Verb(
        _JOBS,
        "kafka:app",
        "The local broker: a real Apache Kafka on this machine, without Docker or Java.",
    ),
    "acl": Verb(
        _PRIVACY,
        "acl:acl",
        "Say the least that each role of a job needs on Kafka; --apply adds it to the ACLs.",
        "students --role shuffle --principal shuffle=User:ann",
    ),
    "audit": Verb(
        _PRIVACY,
        "audit:audit",
        "Compare the privacy loss of a protocol or job with its claim. Exits with 1 if larger.",
        "future_rand --quick",
    ),
    "ledger": Verb(
        _PRIVACY,
        "ledger:ledger",
        "Say what people were charged, when and for what, what was released, and what is left to "
        "them.",
        "students --verify",
    ),
    "budget": Verb(
        _PRIVACY,
        "budget:budget",
        "Show the most that people may be charged by all jobs together, or set or lift it.",
        'students --epsilon 8 --reason "asked again in June"',
    ),
    "serve": Verb(
        _RESULTS,
        "serve:serve",
        "Serve a live page of all jobs, and a JSON API, until told to stop (Ctrl-C, SIGTERM).",
        "students --port 8765",
    ),
    "password": Verb(
        _RESULTS,
        "serve:password",
        "Choose the password of the live page, for dpstream serve --password-file FILE.",
        "page.password",
    ),
    "estimates": Verb(
        _RESULTS,
        "estimates:estimates",
        "Print the published estimates; of items the largest ones, of numbers the quartiles.",
        "students --follow --format csv",
    ),
    "query": Verb(
        _RESULTS,
        "query:query",
        "Ask the windows of a job whose epochs stand alone: items, ranges, boxes, quantiles.",
        "words --epoch 3 --top 10",
    ),
    "diff": Verb(
        _RESULTS,
        "diff:diff",
        "Compare two jobs of one protocol and domain, epoch by epoch. Exit code 1 if they differ.",
        "students students-replay",
    ),
    "list": Verb(_RESULTS, "jobs:list_jobs", "List the deployed jobs.", "--json"),
    "status": Verb(
        _RESULTS,
        "status:status",
        "Say what jobs are doing. Exit code 1 if anything needs a person.",
        "students",
    ),
    "producers": Verb(
        _RESULTS,
        "producers:producers",
        "List who reports to a job, or end a producer for good.",
        "students --retire gateway-2",
    ),
    "dead-letters": Verb(
        _RESULTS,
        "dead_letters:dead_letters",
        "Count the records that were refused, by reason, and list the latest.",
        "students --redrive",
    ),
}


def installed_verbs() -> dict[str, Verb]:
    """Those of `VERBS` whose modules are there."""
    modules = {module.name for module in iter_modules([str(Path(__file__).parent)])}
    return {name: verb for name, verb in VERBS.items() if verb.module in modules}


def _with_bare_flags(params: list[Any]) -> list[Any]:
    """Options, of which flags say no type: they take no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class PlainCommand(TyperCommand):
    """A command whose flags are shown as flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its arguments and options, that for help included."""
        return _with_bare_flags(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A list of commands whose flags are shown as flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, that for help included."""
        return _with_bare_flags(super().get_params(ctx))


class LazyCommand(PlainCommand):
    """Stands for a verb in the list; parses and runs with what the verb's module defines."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.summary, rich_help_panel=verb.panel)
        self._verb = verb

    @cached_property
    def loaded(self) -> Any:
        """The command itself, a `TyperCommand` or a `TyperGroup`."""
        assert self.name is not None
        return _load(self.name, self._verb)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """The context of the command itself, which is what is invoked with it."""
        return self.loaded.make_context(*arguments, **extra)


def build_command() -> TyperGroup:
    """The command line, ready to be run."""
    app = typer.Typer(
        name="dpstream",
        cls=PlainGroup,
        help="Continual, differentially private statistics from Kafka streams.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_of_all_verbs)
    group = get_group(app)
    group.commands = {name: LazyCommand(name, verb) for name, verb in installed_verbs().items()}
    return group


def _say_version(wanted: bool) -> None:
    if wanted:
        # Not at the top: it reads mail, too.
        from importlib.metadata import version as version_of

        print(f"dpstream {version_of('dpstream')}")
        raise typer.Exit


def _of_all_verbs(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    pass


def _load(name: str, verb: Verb) -> Any:
    attribute = verb.target.partition(":")[2]
    with loading():
        target = getattr(import_module(f"dpstream.pipeline.cli.{verb.module}"), attribute)
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
        epilog=f"Example: dpstream {name} {verb.example}",
    )(target)
    return get_command(app)


def _flowing(command: Callable[..., None]) -> str:
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
