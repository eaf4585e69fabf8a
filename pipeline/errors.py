r"""Base class for errors that end a command with a message instead of a traceback.

Text from topics, files and brokers is escaped so that it cannot control the terminal.

>>> printable("a\x1b[2Jb\tc\nd\x9b1m"), printable("Zürich 東京")
('a�[2Jb�c\nd�1m', 'Zürich 東京')
>>> one_line("job a\nerror: all is lost")
'job a�error: all is lost'
"""

from __future__ import annotations

from typing import Any, ClassVar

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Replace control and other unprintable characters; keep line breaks."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _REPLACEMENT for letter in text
    )


def one_line(text: str) -> str:
    """Replace unprintable characters and line breaks, for a name or detail within a sentence."""
    return printable(text).replace("\n", _REPLACEMENT)


def error_line(error: BaseException) -> str:
    r"""Return an error's type and message on one line, for a log.

    >>> error_line(ValueError("two\nlines")), error_line(KeyError())
    ('ValueError: two lines', 'KeyError')
    """
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def printable_json(text: str) -> str:
    r"""Escape unprintable characters in JSON text, without changing its value.

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
    """Failure of a request; the message states where, what is wrong, and how to fix it.

    `exit_code` is `WRONG_INPUT` if the command line, a job file or input is wrong, else `FAILED`.
    """

    exit_code: ClassVar[int] = FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all attributes; by default, unpickling would call `__init__(message)`."""
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[DpstreamError], message: tuple[Any, ...]) -> DpstreamError:
    return kind.__new__(kind, *message)
