"""Read JSON records, each one object, from the lines of a file or the events in a topic.

Fields become texts, as in a CSV file: user, position in time, value, and crowd if there are crowds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TextIO

import numpy as np

from dpstream.pipeline.devices.bad_rows import BadRow, InputError
from dpstream.pipeline.devices.bounded_lines import LINE_CAP, RECORD_CAP, EndlessLineError
from dpstream.pipeline.devices.columns import Columns, Placing, no_such_columns
from dpstream.pipeline.devices.rows import Records, user_problems
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.values.times import shown

_BATCH: Final = 1 << 12
_MISSING: Final = object()
_ARRAY: Final = "got a JSON array; expected one object per line. To convert it: jq -c '.[]'"
_EXACT: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of a record's fields; keys of nested fields contain dots.

    >>> Keys.of({"payload": {"user": "ann"}, "epoch": 3, "value": True},
    ...         InputFormat.model_validate_json('{"columns": {"user": "payload.user"}}')).fields(
    ...     {"payload": {"user": "bob"}, "epoch": 4, "value": None})
    ['bob', '4', '']

    Attributes:
        placing: Source of a record's epoch; for `Placing.ARRIVAL`, the record's timestamp.
        position: Key of the epoch or time; empty for `Placing.ARRIVAL`.
        crowd: Key of the crowd; None without crowds.
        others: Keys of an event's fields, which a record can leave out; None for values.
    """

    user: str
    placing: Placing
    position: str
    value: str
    crowd: str | None = None
    others: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        record: dict[str, Any],
        input_format: InputFormat,
        *,
        crowd: str | None = None,
        fields: Sequence[str] | None = None,
        stamped: bool = False,
        name: str = "",
    ) -> Keys:
        """Derive the keys from the first record of an input.

        `input_format` names the keys, `crowd` is the key of the crowd, and `fields` are the fields
        of events, which have no key `value`. If `stamped`, records without epoch and time are
        placed by a timestamp. Raises `InputError` if a key is missing.
        """
        columns = input_format.columns
        stated = columns.placing
        there = [
            Placing(each)
            for each in ([stated] if stated else ("epoch", "time"))
            if _found(record, columns.name_of(each)) is not _MISSING
        ]
        if len(there) > 1:
            raise InputError(
                f"{name}: records have both keys epoch and time; select one, such as --column "
                "time=time"
            )
        placing = there[0] if there else Placing.ARRIVAL
        missing = [
            column
            for column in ("user", *(("value",) if fields is None else ()))
            if _found(record, columns.name_of(column)) is _MISSING
        ]
        if not there and (stated or not stamped):
            missing.append(stated or "time")
        if crowd is not None and _found(record, crowd) is _MISSING:
            raise InputError(f"{name}: records must have the key {shown(crowd)}, the user's crowd")
        if missing:
            raise InputError(
                no_such_columns(
                    *(name, list(_names(record)), missing, input_format, "the first record"),
                    None if fields is None else (),
                )
            )
        return cls.placed(placing, input_format, crowd, fields)

    @classmethod
    def placed(
        cls,
        placing: Placing,
        input_format: InputFormat,
        crowd: str | None,
        fields: Sequence[str] | None = None,
    ) -> Keys:
        position = "" if placing is Placing.ARRIVAL else input_format.columns.name_of(placing)
        user, value = input_format.columns.name_of("user"), input_format.columns.name_of("value")
        others = None if fields is None else tuple(map(input_format.columns.name_of, fields))
        return cls(user, placing, position, value, crowd, others)

    @property
    def columns(self) -> Columns:
        return Columns.in_order(self.placing, crowd=self.crowd is not None, fields=self.others)

    def fields(self, record: dict[str, Any]) -> list[str]:
        """Return a record's user, position (empty for arrival), value and crowd, if any, as texts.

        Of events, the fields replace the value; a missing field is empty. Raises `ValueError` if a
        field is missing or is not a single value.
        """
        user = _text(record, self.user)
        position = _text(record, self.position) if self.position else ""
        if self.others is not None:
            there = (key if _found(record, key) is not _MISSING else None for key in self.others)
            texts = ("" if key is None else _text(record, key) for key in there)
            return [user, position, *texts]
        value = _text(record, self.value)
        return [user, position, value, *([] if self.crowd is None else [_text(record, self.crowd)])]


def parse_object(text: str | bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or "unreadable"
        raise ValueError(f"not JSON: {reason}: {shown(_readable(text))}") from None
    if not isinstance(record, dict):
        raise ValueError(f"got {shown(_readable(text))}; expected a JSON object")
    return record


def json_file(
    name: str,
    text: TextIO,
    input_format: InputFormat,
    crowd: str | None,
    fields: Sequence[str] | None = None,
) -> tuple[Columns, Iterator[Records]]:
    """Return the columns and records of a file with one object per line.

    Raises `InputError` if no line is an object, or if the first object lacks a key.
    """
    lines = enumerate(_lines(text), 1)
    bad: list[BadRow] = []
    for number, line in lines:
        if not line.strip():
            continue
        if line.lstrip().startswith("["):
            raise InputError(f"{name}:{number}: {_ARRAY}")
        try:
            first = parse_object(line)
        except ValueError as error:
            bad.append(BadRow(number, str(error), anonymous=True))
            continue
        keys = Keys.of(first, input_format, crowd=crowd, fields=fields, name=name)
        return keys.columns, _batches(keys, [(number, line)], lines, bad)
    first_problem = f"\n{name}:{bad[0].line}: {bad[0].reason}" if bad else ""
    raise InputError(f"{name}: no line is a JSON object{first_problem}")


def flat_records(
    text: TextIO, name: str
) -> tuple[tuple[str, ...], Iterator[tuple[list[list[str]], int]]]:
    """Return the names of all single fields, and batches of rows with the number of unusable lines.

    The names are those of the first lines; later names are not used. A missing field is an empty
    text. Raises `InputError` if no line is an object.
    """
    lines = (line for line in _lines(text) if line.strip())
    first = list(islice(lines, _BATCH))
    if first and first[0].lstrip().startswith("["):
        raise InputError(f"{name}:1: {_ARRAY}")
    objects = _objects(first)
    if not objects:
        raise InputError(f"{name}: no line is a JSON object")
    names = tuple(dict.fromkeys(each for record in objects for each in _names(record)))

    def batches() -> Iterator[tuple[list[list[str]], int]]:
        batch = first
        while batch:
            found = _objects(batch)
            yield (
                [[_flat(record, each) for each in names] for record in found],
                (len(batch) - len(found)),
            )
            batch = list(islice(lines, _BATCH))

    return names, batches()


def _objects(lines: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(parse_object(line))
    return found


def _flat(record: dict[str, Any], name: str) -> str:
    try:
        return _text(record, name)
    except ValueError:
        return ""


def _batches(
    keys: Keys,
    first: Sequence[tuple[int, str]],
    lines: Iterator[tuple[int, str]],
    bad: list[BadRow],
) -> Iterator[Records]:
    batch = [*first, *islice(lines, _BATCH)]
    while batch:
        yield records_of(keys, batch, bad)
        bad = []
        batch = list(islice(lines, _BATCH))


def records_of(
    keys: Keys, texts: Iterable[tuple[int, str | bytes]], bad: Sequence[BadRow] = ()
) -> Records:
    """Return the records of numbered JSON texts, without blank texts; `bad` rows come first."""
    fields, numbers, found, named = [], [], list(bad), []
    for number, text in texts:
        if not text.strip():
            continue
        try:
            record = parse_object(text)
        except ValueError as error:
            found.append(BadRow(number, str(error), anonymous=True))
            continue
        try:
            fields.append(keys.fields(record))
        except ValueError as error:
            whose = _user(record, keys)
            found.append(BadRow(number, f"{error}: {shown(_readable(text))}", whose is None))
            named += [] if whose is None else [whose]
            continue
        numbers.append(number)
    lines = np.array(numbers, np.int64)
    return Records(fields, lines, bad=tuple(found), named=tuple(named))


def _user(record: dict[str, Any], keys: Keys) -> str | None:
    try:
        user = _text(record, keys.user)
    except ValueError:
        return None
    return None if user_problems([user]) else user


def _found(record: dict[str, Any], name: str) -> object:
    if name in record:
        return record[name]
    inner: object = record
    for key in name.split("."):
        if not isinstance(inner, dict) or key not in inner:
            return _MISSING
        inner = inner[key]
    return inner


def _text(record: dict[str, Any], name: str) -> str:
    found = _found(record, name)
    if isinstance(found, str):
        return found
    if found is None:
        return ""
    if found is _MISSING:
        raise ValueError(f"missing key {shown(name)}")
    if isinstance(found, float) and not math.isfinite(found):
        raise ValueError(f"{shown(name)} is {found}; expected a JSON number")
    if isinstance(found, float) and found.is_integer() and abs(found) < _EXACT:
        # JSON has only one type of number: 1.0 is the user, epoch or value 1.
        return str(int(found))
    if isinstance(found, bool | int | float):
        return json.dumps(found)
    raise ValueError(f"{shown(name)} is a list or an object; expected a single value")


def _names(record: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _lines(text: TextIO) -> Iterator[str]:
    while piece := text.readline(RECORD_CAP + 1):
        if len(piece) <= RECORD_CAP:
            yield piece
            continue
        length = len(piece)
        yield piece[
            : RECORD_CAP // 1024
        ]  # Invalid JSON: a bad row that shows the start of the line.
        while len(piece) > RECORD_CAP and not piece.endswith("\n"):
            piece = text.readline(RECORD_CAP + 1)
            length += len(piece)
            if length > LINE_CAP:
                raise EndlessLineError(
                    f"a line has more than {LINE_CAP:,} characters; expected one object per line"
                )


def _readable(text: str | bytes) -> str:
    text = text[:100]
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text.strip()
