"""The command ``dpstream``: parses, calls what does the work, prints.

Begin reading with `dpstream.pipeline.cli.verbs`, the list of what it can do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from dpstream.pipeline.cli.loading import loading
from dpstream.pipeline.cli.standard_streams import make_streams_usable
from dpstream.pipeline.errors import INTERRUPTED

if TYPE_CHECKING:
    from typer.core import TyperGroup


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default; returns the exit code."""
    if arguments is None:
        make_streams_usable()
    try:
        # Loaded here: it takes a moment, in which Ctrl-C is no more an error than later on.
        with loading():
            from dpstream.pipeline.cli.errors import run_command

            command = _command()
    except KeyboardInterrupt:
        return INTERRUPTED
    return run_command(command, sys.argv[1:] if arguments is None else arguments)


@cache
def _command() -> TyperGroup:
    """Made once, with every verb that was run: it takes as long as many a command."""
    from dpstream.pipeline.cli.verbs import build_command

    return build_command()
