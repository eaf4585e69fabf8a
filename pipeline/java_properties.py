r"""Java's .properties files, read as ``java.util.Properties`` reads them.

Kafka's own tools write down connections and broker settings in this format. Source: the format's
description under ``java.util.Properties.load``: ISO 8859-1, ``#`` and ``!`` comments, ``=``, ``:``
or white space after the key, a trailing backslash joins the next line, ``\uXXXX``, last one wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ENCODING = "iso-8859-1"

_BLANK = " \t\f"
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Property:
    """One setting: its value and the number of the line (from 1) on which it begins."""

    value: str
    line: int


def parse_properties(text: str) -> dict[str, Property]:
    r"""Return the settings of a .properties file by key.

    Raises `ValueError` naming the line of a malformed ``\u`` escape.

    >>> parse_properties("# where\nbootstrap.servers = a:9092,\\\n    b:9092\n")
    {'bootstrap.servers': Property(value='a:9092,b:9092', line=2)}
    """
    properties = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        try:
            properties[_unescape(key.group())] = Property(
                _unescape(line[separator.end() :]), number
            )
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = enumerate(re.split(r"\r\n|\r|\n", text), start=1)
    for number, line in lines:
        line = line.lstrip(_BLANK)
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(_BLANK)
        yield number, line


def _unescape(text: str) -> str:
    # Java counts a character beyond the basic plane as two; here the pair is one again.
    units = _ESCAPE.sub(_character, text).encode("utf-16", "surrogatepass")
    return units.decode("utf-16", "surrogatepass")


def _character(escape: re.Match[str]) -> str:
    code = escape.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    if code == "u":
        raise ValueError(r"\u must be followed by four hexadecimal digits")
    return _CONTROLS.get(code, code)
