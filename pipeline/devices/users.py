"""User lists: the users of a job, fixed before any value is read.

The users that a job counts are public, so they must not depend on values, or on when a row arrives.
A user list has one user per line, or the column ``user`` of a CSV file with a header. Other columns
of this file can be public attributes, by which a job divides its users.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from os import PathLike, fspath
from typing import TYPE_CHECKING, TextIO

from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, InputError, counted
from dpstream.pipeline.devices.bounded_lines import RECORD_CAP
from dpstream.pipeline.devices.record_files import open_text, other_format
from dpstream.pipeline.devices.rows import read_records, user_problems
from dpstream.pipeline.values.times import shown

if TYPE_CHECKING:
    from dpstream.pipeline.devices.producer import Producer
    from dpstream.pipeline.jobs.job_files import Job


@dataclass(frozen=True, slots=True, eq=False)
class Roster(Collection[str]):
    """The users of a job, sorted, with their public columns, which are fixed like the users.

    Attributes:
        columns: Text of every user by column, in the order of `users`.
    """

    users: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.users)

    def __len__(self) -> int:
        return len(self.users)

    def __contains__(self, user: object) -> bool:
        return user in self.users


def load_users(path: str | PathLike[str]) -> tuple[str, ...]:
    """Read a plain or gzip user list, and return the users, sorted.

    User names are written as in the input, in quotes if they contain a comma. Empty lines and
    repeated users are harmless. The first line is a header if one of its fields is ``user``.

    Raises `InputError` if the list is empty or has a line that is not a user, or if the file is not
    a regular file or cannot be read.
    """
    return load_roster(path, ()).users


def load_job_users(job: Job, path: str | PathLike[str]) -> Collection[str]:
    columns = tuple(job.public_columns.values())
    return load_roster(path, columns) if columns else load_users(path)


def enroll_users(producer: Producer, users: Collection[str]) -> None:
    names, groups = list(users), None
    if producer.job.public_columns:
        # Imported late because other jobs do not need it.
        from dpstream.pipeline.devices.event_log import groups_in

        groups = groups_in(producer.job, names, users)
    producer.enroll(names, groups)


def check_grouped(job: Job) -> None:
    """Raise `InputError` if a job without a user list has public attributes."""
    if job.public_columns:
        from dpstream.pipeline.devices.event_log import groups_in

        groups_in(job, (), None)


def load_roster(path: str | PathLike[str], columns: Sequence[str]) -> Roster:
    """Read a user list with public columns, which its header must name.

    Raises `InputError` as `load_users` does, and if a column is missing or a user has two values.
    """
    name = fspath(path)
    bad_rows = BadRows(name)
    users: dict[str, tuple[str, ...]] = {}
    places: _Columns | None = None
    with open_text(name, regular=True) as text:
        lines = _plain(name, text)
        for records in read_records(lines):
            rows = list(zip(records.lines.tolist(), records.fields, strict=True))
            if places is None and rows:
                places = _Columns.of(rows[0][1], columns)
                rows = rows[places.is_header :]
                if missing := [each for each in columns if each not in places.others]:
                    raise InputError(
                        f"{name}: the header has no column {missing[0]}, which is a public "
                        "attribute; expected the columns user and " + ", ".join(columns)
                    )
            found, bad = _names(rows, places or _Columns())
            for line, user, values in found:
                if users.setdefault(user, values) != values:
                    bad.append(BadRow(line, f"contradicts an earlier line for user {shown(user)}"))
            if records.broken is not None:
                bad.append(records.broken.as_row())
            bad_rows = bad_rows.plus(bad)
    if bad_rows.total:
        raise InputError(f"{name}: {counted(bad_rows.total, 'bad row')}; correct them\n{bad_rows}")
    if not users:
        raise InputError(f"{name}: no users; expected one user per line")
    ordered = tuple(sorted(users))
    texts = {each: tuple(users[user][at] for user in ordered) for at, each in enumerate(columns)}
    return Roster(ordered, texts)


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
    others: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, first: Sequence[str], columns: Sequence[str]) -> _Columns:
        names = [field.strip().casefold() for field in first]
        if "user" not in names:
            return cls()
        folded = {each: each.strip().casefold() for each in columns}
        others = {each: names.index(text) for each, text in folded.items() if text in names}
        return cls(len(names), names.index("user"), True, others)


def _names(
    rows: Sequence[tuple[int, Sequence[str]]], columns: _Columns
) -> tuple[list[tuple[int, str, tuple[str, ...]]], list[BadRow]]:
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
    whole = [(line, row) for line, row in rows if len(row) == columns.width]
    names = [row[columns.user].removeprefix("\ufeff") for _, row in whole]
    problems = user_problems(names)
    found = [
        (line, user, tuple(row[at].strip() for at in columns.others.values()))
        for index, ((line, row), user) in enumerate(zip(whole, names, strict=True))
        if index not in problems
    ]
    return found, bad + [BadRow(whole[index][0], why) for index, why in problems.items()]
