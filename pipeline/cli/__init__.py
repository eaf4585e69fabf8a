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
    """Open closed standard streams on the null device, and escape unencodable characters.

    Otherwise, the next file or socket would get the descriptor of a closed stream, and a library's
    output could be sent to a broker.
    """
    # In the order of descriptors: open() takes the lowest free one.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection during imports, and freeze the loaded objects.

    This saves a tenth of the import time. Later collections, for example while long logs are read
    or at process shutdown, skip the frozen objects.

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
    """Run a command line, by default that of this process, and return the exit code."""
    if arguments is None:
        make_streams_usable()
    try:
        # Imported here, so that Ctrl-C during this slow import also exits cleanly.
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
