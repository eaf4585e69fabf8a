"""``dpstream password``: the password of a live page, hashed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.output import say, tell
from dpstream.pipeline.serve.passwords import LONGEST, write_password


def password(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where its hash is written.")],
) -> None:
    """Choose the password of the live page, for dpstream serve --password-file FILE.

    It is asked for on a terminal, twice, and read from the first line of the input elsewhere. The
    file holds its hash alone; make it anew to change it, and start the page again.
    """
    if sys.stdin.isatty():
        chosen: str = typer.prompt(
            "Password of the page", hide_input=True, confirmation_prompt="The same again", err=True
        )
    else:
        line = sys.stdin.readline(LONGEST + 2)
        if not line.strip():
            raise UsageProblem("no password came: give it as the first line of the input")
        chosen = line.rstrip("\r\n")
    write_password(file, chosen)
    say(f"its hash is in {file}")
    tell(f"dpstream serve --password-file {file} asks for it")
