"""Make the standard streams of the process safe to write to."""

from __future__ import annotations

import io
import os
import sys


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
