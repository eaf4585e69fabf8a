r"""The base of all errors that end a command with a sentence instead of a traceback.

Text from topics, files and brokers is made fit for a terminal, which it is not to steer.

>>> printable("a\x1b[2Jb\tc\nd\x9b1m"), printable("Zürich 東京")
('a�[2Jb�c\nd�1m', 'Zürich 東京')
>>> one_line("job a\nerror: all is lost")
'job a�error: all is lost'
"""

from __future__ import annotations

from typing import Any, ClassVar

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """A text without control characters and what else has no look of its own; lines stay."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _REPLACEMENT for letter in text
    )


def one_line(text: str) -> str:
    """The same for a name or detail within a sentence, which is not to begin a line of its own."""
    return printable(text).replace("\n", _REPLACEMENT)


def error_line(error: BaseException) -> str:
    r"""What an error is, for a log.

    >>> error_line(ValueError("two\nlines")), error_line(KeyError())
    ('ValueError: two lines', 'KeyError')
    """
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def printable_json(text: str) -> str:
    r"""JSON text in which such characters are escaped, so that its value stays what it is.

    >>> printable_json('{"a": "\x9b1m"}')
    '{"a": "\\u009b1m"}'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


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
