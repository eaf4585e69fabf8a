"""The command ``dpstream``: parse arguments, call the implementation, print.

Start with `dpstream.pipeline.cli.commands`, the list of commands.
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
    """Replace closed standard streams, and escape characters that an encoding lacks.

    Python represents a closed stream as None, and the next file or socket opened would get its
    descriptor: output of a library could be sent to a broker.
    """
    # In the order of their descriptors: each open takes the lowest free one.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection during imports, and exclude what exists then from later ones.

    Importing many modules takes a tenth less time. Commands that read long logs, and the shutdown
    of the process, do not scan these objects again.

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
    """Run a command line, by default that of this process; return the exit code."""
    if arguments is None:
        make_streams_usable()
    try:
        # Imported here: loading takes a moment, and Ctrl-C during it is not an error either.
        with loading():
            from dpstream.pipeline.cli.command_errors import run_command

            command = _command()
    except KeyboardInterrupt:
        return INTERRUPTED
    return run_command(command, sys.argv[1:] if arguments is None else arguments)


@cache
def _command() -> TyperGroup:
    from dpstream.pipeline.cli.commands import build_command

    return build_command()
