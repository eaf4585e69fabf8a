"""Questions before anything is lost, and before people are charged again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dpstream.pipeline.cli.errors import UsageProblem
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
