"""Arguments and options shared by several commands."""

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
    typer.Option("--yes", help="Skip confirmation of losses and repeated charges, for scripts."),
]


def ask(loss: str, otherwise: str) -> None:
    """Continue if the user accepts `loss` on the terminal; otherwise, print `otherwise` and exit.

    Raises `UsageProblem` if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise UsageProblem(f"{loss}; confirmation requires a terminal: add --yes")
    tell(loss)
    if not typer.confirm("continue?", err=True):
        tell(otherwise)
        raise typer.Exit(FAILED)


def _ranges(texts: list[str] | None) -> list[str] | None:
    # Checked before Typer rejects HIGH as an extra argument.
    for text in texts or ():
        if ":" not in text:
            raise UsageProblem(f"--range: got {text!r}; expected LOW:HIGH, such as 10:20")
    return texts


Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        envvar="DPSTREAM_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="Kafka cluster. Default: the local broker.",
        rich_help_panel="Cluster",
    ),
]
KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="A client.properties file with the TLS and SASL settings of Kafka's own tools.",
        rich_help_panel="Cluster",
    ),
]
SealingKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FOLDER",
        help="Folder of private keys, for jobs with sealed reports. Default: the folder used by "
        "dpstream keygen.",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", metavar="FILE", help="Serve over TLS with this certificate chain (PEM)."
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert (PEM)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOBFILE", help="Job file (YAML).")]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of a deployed job, or its job file.")
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Skip unusable rows.")]


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


_QUESTION = "Queries, one kind at a time"

Item = Annotated[
    list[str] | None,
    typer.Option(
        "--item",
        metavar="X",
        help="Item to estimate, or @FILE with one item per line. May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        min=1,
        metavar="K",
        help="The K items with the largest estimates. Selection biases estimates upwards; the "
        "interval '± all' holds for all items of the domain at once.",
        rich_help_panel=_QUESTION,
    ),
]
Range = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="LOW:HIGH",
        help="Count values of at least LOW and below HIGH; integers include HIGH. May be repeated.",
        callback=_ranges,
        rich_help_panel=_QUESTION,
    ),
]
Quantile = Annotated[
    list[str] | None,
    typer.Option(
        "--quantile",
        metavar="Q",
        help="Quantile Q: 0.5 is the median; nine of ten values lie below quantile 0.9. May be "
        "repeated.",
        rich_help_panel=_QUESTION,
    ),
]
Crowd = Annotated[
    str | None,
    typer.Option(
        "--crowd",
        metavar="LABEL",
        help="(in jobs with crowds) Size and items of this crowd, or only the requested items.",
        rich_help_panel=_QUESTION,
    ),
]
Box = Annotated[
    list[str] | None,
    typer.Option(
        "--box",
        metavar="A1:B1,A2:B2",
        help="Count points in a box, ends included. May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageProblem(
            f"--name: got {name!r}; expected letters, digits, '.', '-' and '_', starting "
            "with a letter or digit"
        )
    return name
