"""User lists: the users of a job, fixed before any value is read.

The users that a job counts are public, so they must not depend on values, or on when a row arrives.
A user list has one user per line, or the column ``user`` of a CSV file with a header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from os import PathLike, fspath
from typing import TextIO

from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, InputError, counted
from dpstream.pipeline.devices.bounded_lines import RECORD_CAP
from dpstream.pipeline.devices.record_files import open_text, other_format
from dpstream.pipeline.devices.rows import read_records, user_problems


def load_users(path: str | PathLike[str]) -> tuple[str, ...]:
    """Read a plain or gzip user list, and return the users, sorted.

    User names are written as in the input, in quotes if they contain a comma. Empty lines and
    repeated users are harmless. The first line is a header if one of its fields is ``user``.

    Raises `InputError` if the list is empty or has a line that is not a user, or if the file is not
    a regular file or cannot be read.
    """
    name = fspath(path)
    bad_rows = BadRows(name)
    users: set[str] = set()
    columns: _Columns | None = None
    with open_text(name, regular=True) as text:
        lines = _plain(name, text)
        for records in read_records(lines):
            rows = list(zip(records.lines.tolist(), records.fields, strict=True))
            if columns is None and rows:
                columns = _Columns.of(rows[0][1])
                rows = rows[columns.is_header :]
            names, bad = _names(rows, columns or _Columns())
            users.update(names)
            if records.broken is not None:
                bad.append(records.broken.as_row())
            bad_rows = bad_rows.plus(bad)
    if bad_rows.total:
        raise InputError(f"{name}: {counted(bad_rows.total, 'bad row')}; correct them\n{bad_rows}")
    if not users:
        raise InputError(f"{name}: no users; expected one user per line")
    return tuple(sorted(users))


def _plain(name: str, text: TextIO) -> Iterator[str]:
    # Bounds memory for a file of one endless line.
    first = text.readline(RECORD_CAP + 1)
    kind = other_format(first)
    if kind is not None:
        raise InputError(
            f"{name}: {kind}; expected a user list: text with one user per line, or CSV "
            "with a column user"
        )
    return chain([first] if first else [], iter(partial(text.readline, RECORD_CAP + 1), ""))


@dataclass(frozen=True, slots=True)
class _Columns:
    width: int = 1
    user: int = 0
    is_header: bool = False

    @classmethod
    def of(cls, first: Sequence[str]) -> _Columns:
        names = [field.strip().casefold() for field in first]
        return cls(len(names), names.index("user"), True) if "user" in names else cls()


def _names(
    rows: Sequence[tuple[int, Sequence[str]]], columns: _Columns
) -> tuple[list[str], list[BadRow]]:
    needed = f"the header has {columns.width}"
    if not columns.is_header:
        needed = (
            "expected one user per line, quoted if it contains a comma, or CSV with a column user"
        )
    bad = [
        BadRow(line, f"{counted(len(row), 'field')}; {needed}")
        for line, row in rows
        if len(row) not in (0, columns.width)
    ]
    whole = [(line, row[columns.user]) for line, row in rows if len(row) == columns.width]
    names = [name.removeprefix("\ufeff") for _, name in whole]
    problems = user_problems(names)
    return names, bad + [BadRow(whole[index][0], why) for index, why in problems.items()]
