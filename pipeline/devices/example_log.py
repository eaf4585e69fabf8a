"""Example logs: the labeled example of each user, the same at every epoch.

A file has one row per user, in any order. The first line names the columns: ``user``, ``class``,
and the features in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import BadRow, BadRows, BadRowsError, InputError, counted
from dpstream.pipeline.devices.ground_truths import CountedGroundTruths, GroundTruths
from dpstream.pipeline.devices.record_files import open_text, other_format
from dpstream.pipeline.devices.rows import read_records, user_problems
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import ValueDomain

HEADER_NEEDS = "the columns user and class, and the features"

_HEADER_CAP = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class ExampleLog:
    """Examples of all users; attributes not listed are those of `ChangeLog`.

    Attributes:
        users: User names, sorted.
        examples: Class and features of each user; int16, shape (users, 1 + features), as defined by
            `ExampleDomain`; zeros for a user on the user list without a usable row.
    """

    users: tuple[str, ...]
    examples: NDArray[np.int16]
    last_epoch: int
    bad_rows: BadRows
    warnings: tuple[str, ...] = ()
    on_user_list: bool = False
    unknown_users: int = 0

    def values_by_epoch(self) -> Iterator[NDArray[np.int16]]:
        """Yield the examples of all users at epochs 1, 2, ...: the same array each time."""
        for _ in range(self.last_epoch):
            yield self.examples

    def ground_truth(self, domain: ValueDomain) -> NDArray[np.int64]:
        """Return an array of shape (last_epoch, 0), because nothing is counted."""
        return np.zeros((self.last_epoch, 0), np.int64)

    def ground_truths(self, domain: ValueDomain) -> GroundTruths:
        """Return an empty ground truth: the input does not contain the model to estimate."""
        return CountedGroundTruths(self.ground_truth(domain))


def load_example_log(
    path: str | PathLike[str],
    *,
    domain: ExampleDomain,
    last_epoch: int,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat = AS_IT_IS,
) -> ExampleLog:
    """Read examples from a plain or gzip CSV file with any name.

    If a user has several rows, the first row counts and the other rows are bad.
    ``input_format.columns.value`` names the column of the class. Other arguments and all errors are
    those of `load_change_log`.
    """
    name = fspath(path)
    if (rejection := input_format.rejection(domain)) is not None:
        raise InputError(f"input: {rejection}")
    bad = BadRows(name)
    said: list[str] = []
    examples: dict[str, NDArray[np.int16] | None] = {}
    with open_text(name, input_format=input_format, said=said) as text:
        lines = [line] if (line := text.readline(_HEADER_CAP)) else []
        if line and (kind := other_format(line)) is not None:
            raise InputError(
                f"{name}: {kind}; expected examples as CSV, with {HEADER_NEEDS} in the first line"
            )
        header = next(read_records(lines, separator=input_format.separator), None)
        if header is None or header.broken or not header.fields:
            raise InputError(f"{name}: the first line must contain {HEADER_NEEDS}")
        user_at, class_at = _columns(name, header.fields[0], domain.features, input_format)
        width = len(header.fields[0])
        for records in read_records(text, before=1, separator=input_format.separator):
            found = [records.broken.as_row()] if records.broken else []
            for line, fields in zip(records.lines.tolist(), records.fields, strict=True):
                if not fields:
                    continue
                if len(fields) != width:
                    reason = f"got {len(fields)} fields; the header has {width}"
                    found.append(BadRow(line, reason, anonymous=True))
                    continue
                user = fields[user_at]
                if problem := user_problems([user]).get(0):
                    found.append(BadRow(line, problem, anonymous=True))
                    continue
                if examples.get(user) is not None:
                    found.append(BadRow(line, f"second row for user {shown(user)}; expected one"))
                    continue
                if input_format.decimal == ",":
                    fields = [field.replace(",", ".") for field in fields]
                features = [
                    field for at, field in enumerate(fields) if at not in (user_at, class_at)
                ]
                example, problem = domain.example(fields[class_at].strip(), features)
                examples[user] = example if problem is None else None
                if problem is not None:
                    found.append(BadRow(line, problem))
            bad = bad.plus(found)
    return _log(name, examples, bad, domain, last_epoch, users, said, skip=skip_bad_rows)


def _columns(
    name: str, header: Sequence[str], features: int, input_format: InputFormat
) -> tuple[int, int]:
    names = [field.strip().casefold() for field in header]
    called = input_format.columns.name_of("user"), input_format.columns.value or "class"
    user, class_ = (each.strip().casefold() for each in called)
    for column in (user, class_):
        if names.count(column) != 1:
            raise InputError(
                f"{name}: the first line must contain {HEADER_NEEDS}; it contains column {column} "
                f"{counted(names.count(column), 'time')}"
            )
    if len(names) - 2 != features:
        raise InputError(
            f"{name}: got {len(names) - 2:,} columns other than user and class; expected "
            f"{features:,}, one per feature"
        )
    return names.index(user), names.index(class_)


def _log(
    name: str,
    examples: dict[str, NDArray[np.int16] | None],
    bad: BadRows,
    domain: ExampleDomain,
    last_epoch: int,
    user_list: Collection[str] | None,
    said: Sequence[str],
    *,
    skip: bool,
) -> ExampleLog:
    if bad.total and not skip:
        raise BadRowsError(bad)
    if user_list is None and bad.anonymous:
        raise InputError(
            f"{name}: {counted(bad.anonymous, 'bad row')} with an unreadable user cannot be "
            "skipped, because all users with a row are enrolled: correct these rows, or list all "
            f"users with --users FILE\n{bad}"
        )
    if user_list is None and not any(example is not None for example in examples.values()):
        raise InputError(f"{name}: no usable rows")
    users = tuple(sorted(examples if user_list is None else set(user_list)))
    unknown_users = len(examples.keys() - set(users))
    nothing = np.zeros(domain.columns, np.int16)
    rows = [nothing if (row := examples.get(user)) is None else row for user in users]
    warnings = [*said, *([f"{counted(bad.total, 'bad row')} skipped"] if bad.total else [])]
    if unknown_users:
        warnings.append(
            f"not on the user list: {counted(unknown_users, 'user')} whose rows are not used"
        )
    return ExampleLog(
        users=users,
        examples=np.array(rows, np.int16).reshape(-1, domain.columns),
        last_epoch=last_epoch,
        bad_rows=bad,
        warnings=tuple(f"{name}: {warning}" for warning in warnings),
        on_user_list=user_list is not None,
        unknown_users=unknown_users,
    )
