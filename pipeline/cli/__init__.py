"""The command ``dpstream``: parses, calls what does the work, prints.

Begin reading with `dpstream.pipeline.cli.verbs`, the list of what it can do.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from dpstream.pipeline.errors import INTERRUPTED

if TYPE_CHECKING:
    from typer.core import TyperGroup


def make_streams_usable() -> None:
    """Replace streams that are closed, and escape characters that an encoding does not have.

    A closed stream is None in Python, and its file number would go to the next file or socket
    that is opened: what a library prints would be sent to a broker.
    """
    # In the order of their numbers, each of which is the lowest free one.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage meanwhile, and never in what is there then.

    Many modules are loaded a tenth sooner. Who reads long logs does not look through them again and
    again, nor does a process that ends.

    >>> with loading():
    ...     gc.isenabled()
    False
    >>> gc.isenabled(), gc.get_freeze_count() > 0
    (True, True)
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, that of this process by default; returns the exit code."""
    if arguments is None:
        make_streams_usable()
    try:
        # Loaded here: it takes a moment, in which Ctrl-C is no more an error than later on.
        with loading():
            from dpstream.pipeline.cli.command_errors import run_command

            command = _command()
    except KeyboardInterrupt:
        return INTERRUPTED
    return run_command(command, sys.argv[1:] if arguments is None else arguments)


@cache
def _command() -> TyperGroup:
    """Made once, with every verb that was run: it takes as long as many a command."""
    from dpstream.pipeline.cli.verbs import build_command

    return build_command()
