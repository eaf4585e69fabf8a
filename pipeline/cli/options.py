"""Arguments and options that several commands share, and what they mean."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import tell
from dpstream.pipeline.errors import FAILED

Yes = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask what is lost or charged again, as scripts need it."),
]


def ask(loss: str, otherwise: str) -> None:
    """Go on if somebody on the terminal agrees to a loss.

    Args:
        loss: what would be lost or charged.
        otherwise: what is told who does not agree.

    Raises:
        UsageProblem: there is no terminal.
        typer.Exit: nobody agrees.
    """
    if not sys.stdin.isatty():
        raise UsageProblem(f"{loss}; there is no terminal to ask on: add --yes")
    tell(loss)
    if not typer.confirm("go on?", err=True):
        tell(otherwise)
        raise typer.Exit(FAILED)


def _ranges(texts: list[str] | None) -> list[str] | None:
    # Before Typer finds HIGH to be an argument too many.
    for text in texts or ():
        if ":" not in text:
            raise UsageProblem(f"--range: {text!r} is no range: give LOW:HIGH, such as 10:20")
    return texts


Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        envvar="DPSTREAM_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="The Kafka cluster. Default: the local broker.",
        rich_help_panel="Cluster",
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="A client.properties, with the TLS and SASL settings of Kafka's own tools.",
        rich_help_panel="Cluster",
    ),
]
SealingKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FOLDER",
        help="Of jobs whose reports are sealed: where the private keys are. Default: where "
        "dpstream keygen puts them.",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Answer by TLS, with this chain (PEM)."),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="The private key to it (PEM)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOBFILE", help="The job file (YAML).")]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="The name of a deployed job, or its job file.")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Go on without rows that cannot be used.")
]


class Format(StrEnum):
    """How estimates and answers are printed."""

    table = "table"
    csv = "csv"
    json = "json"


class LogFormat(StrEnum):
    """How a worker's lines are written."""

    text = "text"
    json = "json"


_QUESTION = "Questions, one kind at a time"

Item = Annotated[
    list[str] | None,
    typer.Option(
        "--item",
        metavar="X",
        help="This item, or @FILE: those of a file, one a line. May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        min=1,
        metavar="K",
        help="The items with the largest estimates. Selecting biases upwards: ± all holds for all "
        "items of the domain at once.",
        rich_help_panel=_QUESTION,
    ),
]
Range = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="LOW:HIGH",
        help="How many numbers lie from LOW to below HIGH; of whole numbers, HIGH is included. "
        "May be repeated.",
        callback=_ranges,
        rich_help_panel=_QUESTION,
    ),
]
Quantile = Annotated[
    list[str] | None,
    typer.Option(
        "--quantile",
        metavar="Q",
        help="0.5 is the median; below 0.9 lie nine of ten. May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]
Crowd = Annotated[
    str | None,
    typer.Option(
        "--crowd",
        metavar="LABEL",
        help="Of this crowd, of a job with crowds: its size and its items, or those asked for.",
        rich_help_panel=_QUESTION,
    ),
]
Box = Annotated[
    list[str] | None,
    typer.Option(
        "--box",
        metavar="A1:B1,A2:B2",
        help="How many points lie there, ends included. May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> str:
    """The name of a producer or worker, if folders and Kafka can bear it."""
    if not _NAME.fullmatch(name):
        raise UsageProblem(
            f"--name is {name}: give letters, digits, '.', '-' and '_', a letter or digit first"
        )
    return name
