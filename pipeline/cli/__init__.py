"""The command ``dpstream``: parses, calls what does the work, prints.

Begin reading with `pipeline.cli.verbs`, the list of what it can do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

from typer.core import TyperGroup

from pipeline.cli.errors import run_command
from pipeline.cli.verbs import build_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default; returns the exit code."""
    return run_command(_command(), sys.argv[1:] if arguments is None else arguments)


@cache
def _command() -> TyperGroup:
    """Made once, with every verb that was run: it takes as long as many a command."""
    return build_command()
