"""The base of all errors that end a command with a sentence instead of a traceback."""

from __future__ import annotations

from typing import Any, ClassVar

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


class DpstreamError(Exception):
    """What was asked for cannot be done; the message says where, what and what to do.

    Attributes:
        exit_code: of the command that it ends: `WRONG_INPUT` where the command line, a job file or
            input is wrong, otherwise `FAILED`.
    """

    exit_code: ClassVar[int] = FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        """How it gets from a process that runs trials to the one that tells it, as it is there.

        Python would call `__init__` again, with the message for whatever that takes.
        """
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[DpstreamError], message: tuple[Any, ...]) -> DpstreamError:
    return kind.__new__(kind, *message)
