"""The base of all errors that end a command with a sentence instead of a traceback."""

from __future__ import annotations

from typing import ClassVar

FAILED = 1
WRONG_INPUT = 2


class DpstreamError(Exception):
    """What was asked for cannot be done; the message says where, what and what to do.

    Attributes:
        exit_code: of the command that it ends: `WRONG_INPUT` where the command line, a job file or
            input is wrong, otherwise `FAILED`.
    """

    exit_code: ClassVar[int] = FAILED
