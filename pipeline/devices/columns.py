"""Find the columns of an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputColumns, InputFormat
from dpstream.pipeline.values.times import shown

_NEEDED = "the columns user, value and epoch or time"
_SEPARATORS = {";": ";", "\t": "tab", "|": "|", ",": ","}
# Common names of the columns, which messages suggest.
_OFTEN = {
    "user": ("user_id", "userid", "student_id", "customer_id", "id", "name", "who", "device"),
    "value": ("state", "status", "val", "amount", "label", "item"),
    "time": ("timestamp", "date", "datetime", "created_at", "at", "when", "day", "ts"),
    "event": ("event_name", "name", "type", "action", "kind"),
}
_NAMES_SHOWN = 20


class Placing(StrEnum):
    """Source of a row's epoch: the column `epoch`, the column `time`, or the time of arrival."""

    EPOCH = "epoch"
    TIME = "time"
    ARRIVAL = "arrival"


@dataclass(frozen=True, slots=True)
class Columns:
    """Positions of the columns named in a header.

    `crowd` is -1 without crowds. For rows of events, `fields` are the positions of the domain's
    fields, and `value` is -1.
    """

    width: int
    user: int
    value: int
    placing: Placing
    position: int
    unused: tuple[str, ...]
    crowd: int = -1
    fields: tuple[int, ...] | None = None

    @classmethod
    def in_order(
        cls,
        placing: Placing,
        *,
        crowd: bool,
        unused: tuple[str, ...] = (),
        fields: Sequence[str] | None = None,
    ) -> Columns:
        """Return the columns of records with user and position, then value or all `fields`."""
        if fields is not None:
            places = tuple(range(2, 2 + len(fields)))
            return cls(2 + len(places), 0, -1, placing, 1, unused, fields=places)
        return cls(
            width=3 + crowd,
            user=0,
            value=2,
            placing=placing,
            position=1,
            unused=unused,
            crowd=3 if crowd else -1,
        )

    @classmethod
    def of(
        cls,
        name: str,
        header: Sequence[str],
        *,
        live: bool = False,
        crowd: str | None = None,
        fields: Sequence[str] | None = None,
        input_format: InputFormat = AS_IT_IS,
        where: str = "the first line",
    ) -> Columns:
        """Find the columns of a header by name, in any order and any case.

        With `live`, rows without epoch and time belong to the epoch in which they arrive. `crowd`
        is the column with a user's crowd. `fields` are columns of events, which have no `value`.
        Messages locate the header by `name` and `where`.

        Raises `InputError` if a column is missing or occurs twice, or if epoch and time both occur.
        """
        names = [field.strip().casefold() for field in header]
        if "\0" in "".join(names) or not is_text("".join(names)):
            read_as = input_format.encoding or "UTF-8"
            raise InputError(
                f"{name}: {where} is not {read_as} text; expected {columns_needed(fields)}. For "
                "another encoding, use --encoding, such as --encoding cp1252"
            )
        called = {
            column: input_format.columns.name_of(column).strip().casefold()
            for column in ("user", *(("value",) if fields is None else fields), "epoch", "time")
        }
        stated = input_format.columns.placing
        placings = [
            Placing(column)
            for column in ([stated] if stated else ("epoch", "time"))
            if called[column] in names
        ]
        if live and not placings and not stated:
            placings = [Placing.ARRIVAL]
        needed = ("user", *(("value",) if fields is None else fields))
        missing = [column for column in dict.fromkeys(needed) if called[column] not in names]
        if missing or not placings:
            missing += [] if placings else [stated or "time"]
            raise InputError(no_such_columns(name, header, missing, input_format, where, fields))
        if len(placings) > 1:
            raise InputError(
                f"{name}: the header has both columns epoch and time; rename the one to ignore"
            )
        (placing,) = placings
        crowd = None if crowd is None else crowd.strip().casefold()
        if crowd is not None and crowd not in names:
            raise InputError(
                f"{name}: {where}: got {shown(input_format.separator.join(header))}; expected "
                f"a column {crowd} that contains each user's crowd"
            )
        position = called.get(placing, "")
        used = [*dict.fromkeys(called[each] for each in needed), *([position] if position else [])]
        used += [] if crowd is None else [crowd]
        for column in used:
            if names.count(column) > 1:
                raise InputError(f"{name}: the header has column {column} twice; expected it once")
        return cls(
            width=len(names),
            user=names.index(called["user"]),
            value=names.index(called["value"]) if fields is None else -1,
            placing=placing,
            position=names.index(position) if position else -1,
            fields=None if fields is None else tuple(names.index(called[each]) for each in fields),
            unused=tuple(
                field.strip()
                for field, column in zip(header, names, strict=True)
                if column not in used
            ),
            crowd=-1 if crowd is None else names.index(crowd),
        )


def columns_needed(fields: Sequence[str] | None = None) -> str:
    if fields is None:
        return _NEEDED
    return f"the columns {', '.join(dict.fromkeys(('user', *fields)))} and epoch or time"


def is_text(text: str) -> bool:
    """Return whether text that was read with errors="surrogateescape" is valid in its encoding."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def no_such_columns(
    name: str,
    header: Sequence[str],
    missing: Sequence[str],
    input_format: InputFormat,
    where: str,
    fields: Sequence[str] | None = None,
) -> str:
    needed = columns_needed(fields)
    if input_format.columns != AS_IT_IS.columns:
        called = [
            f"{input_format.columns.name_of(column)} (for {column})"
            if input_format.columns.name_of(column) != column
            else column
            for column in missing
        ]
        needed = f"{needed}; missing: {', '.join(called)}"
    text = f"{name}: {where}: got {shown(input_format.separator.join(header))}; expected {needed}"
    other = [
        sign for sign in _SEPARATORS if sign != input_format.separator and sign in "".join(header)
    ]
    if len(header) == 1 and other:
        return f"{text}. Is {_SEPARATORS[other[0]]!r} the separator? Use --separator " + (
            f"'{other[0]}'" if other[0] != "\t" else "tab"
        )
    there = ", ".join(map(shown, header[:_NAMES_SHOWN]))
    mapped = [column for column in missing if fields is None or column in InputColumns.model_fields]
    if not mapped:
        return f"{text}. Columns found: {there}. The job file names the columns of its measures"
    guesses = _guesses(header, mapped)
    flags = " ".join(f"--column {column}={guess}" for column, guess in guesses)
    if ("time", "NAME") in guesses:
        flags += " (or --column epoch=NAME for epoch numbers)"
    return (
        f"{text}. Columns found: {there}. To map them, use {flags}, or set input: "
        f"{{columns: {{...}}}} in the job file"
    )


def _sounds_like(column: str, name: str) -> bool:
    return column == "time" and (name.endswith(("_at", "_on")) or "date" in name)


def _guesses(header: Sequence[str], missing: Sequence[str]) -> list[tuple[str, str]]:
    left = [field.strip() for field in header if field.strip()]
    guesses = []
    for column in missing:
        folded = {field.casefold(): field for field in left}
        likely = [field for field in (column, *_OFTEN.get(column, ())) if field in folded]
        likely += [each for each in folded if column in each or _sounds_like(column, each)]
        likely += get_close_matches(column, list(folded), 1)
        guess = folded[likely[0]] if likely else "NAME"
        left = [field for field in left if field != guess]
        guesses.append((column, guess))
    return guesses
