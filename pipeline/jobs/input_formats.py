"""Section ``input`` of a job file: the format of the rows that producers read.

Only programs that read input use this section. The meaning of reports does not depend on it, so a
running job accepts a new format without being redeployed. Omitted keys have defaults: CSV in UTF-8
with commas and standard column names, times in ISO 8601 or Unix seconds, and values as the job
defines them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from dpstream.pipeline.jobs.job_problems import JobError, explain
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.values.value_domains import BooleanDomain, ValueDomain

ISO, UNIX, UNIX_MILLISECONDS = "iso", "unix", "unix_ms"

_TAB = "\t"
_SAMPLE = datetime(2031, 5, 17, 13, 45, 59)

Duplicates = Literal["first", "last", "largest", "smallest", "reject"]


def _separator(value: object) -> str:
    separator = _TAB if value in ("tab", "\\t") else value
    if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n\0':
        raise ValueError("not one character")
    return separator


def _encoding(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    try:
        # Codecs that are not text encodings, such as base64, do not encode text.
        readable = "a,1\n".encode(value).decode(value) == "a,1\n"
    except (LookupError, UnicodeError, ValueError):
        readable = False
    if not readable:
        raise ValueError("not an encoding")
    return codecs.lookup(value).name


def _time_format(value: object) -> str:
    if (
        not isinstance(value, str)
        or ("%" in value and _year_of(value) != _SAMPLE.year)
        or ("%" not in value and value not in (ISO, UNIX, UNIX_MILLISECONDS))
    ):
        raise ValueError("not a format")
    return value


def _year_of(pattern: str) -> int | None:
    """Format a sample time, parse it again, and return its year; None on failure."""
    try:
        return datetime.strptime(_SAMPLE.replace(tzinfo=UTC).strftime(pattern), pattern).year
    except ValueError:
        return None


def _zone(value: object) -> str:
    try:
        if isinstance(value, str) and ZoneInfo(value):
            return value
    except (LookupError, OSError, ValueError):
        pass
    raise ValueError("not a zone")


def _word(value: object) -> object:
    """Return a value as text if YAML parsed it as a number, true or false."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return value


Word = Annotated[str, BeforeValidator(_word)]
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]
_NAME = "the name of a column; in JSON and Parquet, dots separate nested names: payload.user"


class InputColumns(Section):
    user: ColumnName | None = Field(default=None, description=_NAME)
    value: ColumnName | None = Field(default=None, description=_NAME)
    epoch: ColumnName | None = Field(default=None, description=_NAME)
    time: ColumnName | None = Field(default=None, description=_NAME)
    event: ColumnName | None = Field(default=None, description=_NAME)

    @model_validator(mode="after")
    def _placed_once(self) -> Self:
        if self.epoch is not None and self.time is not None:
            raise ValueError("epoch cannot be combined with time. Remove one of them")
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(write(self))

    @property
    def placing(self) -> str | None:
        """Configured column that determines the epoch: "epoch", "time", or None."""
        return "epoch" if self.epoch is not None else "time" if self.time is not None else None

    def name_of(self, column: str) -> str:
        known = column in type(self).model_fields
        return str((known and getattr(self, column)) or column)


class InputFormat(Section):
    """Format of rows; omitted keys have defaults.

    >>> form = InputFormat.model_validate_json('{"separator": ";", "true": ["ja"]}')
    >>> form.separator, form.true, form.columns.name_of("user")
    (';', ('ja',), 'user')
    """

    format: Literal["csv", "json", "parquet"] | None = Field(
        default=None,
        description="csv, json (one object per line) or parquet. Default: detected from the file",
    )
    columns: InputColumns = InputColumns()
    separator: Annotated[str, PlainValidator(_separator)] = Field(
        default=",", description='one character, such as ";", or tab'
    )
    encoding: Annotated[str, PlainValidator(_encoding)] | None = Field(
        default=None,
        description=(
            "an encoding known to Python, such as latin-1 or cp1252. Default: that of the byte "
            "order mark, or UTF-8 without one"
        ),
    )
    time_format: Annotated[str, PlainValidator(_time_format)] | None = Field(
        default=None,
        description=(
            "iso, unix (seconds), unix_ms (milliseconds), or a pattern with the year, such as "
            '"%d.%m.%Y %H:%M". Default: ISO 8601 or unix seconds'
        ),
    )
    timezone: Annotated[str, PlainValidator(_zone)] | None = Field(
        default=None,
        description=(
            "the time zone for times without one, such as Europe/Berlin. Default: "
            "epochs.timezone, or UTC"
        ),
    )
    true: tuple[Word, ...] = Field(
        default=(), description="a list of texts that mean 1, such as [yes, ja]"
    )
    false: tuple[Word, ...] = Field(
        default=(), description="a list of texts that mean 0, such as [no, nein]"
    )
    decimal: Literal[",", "."] | None = Field(
        default=None, description='"," or ".": the decimal separator'
    )
    values: dict[str, Word] = Field(
        default={}, description="{old: new}: replacements of input values"
    )
    clamp: bool = Field(
        default=False,
        description="true or false: clamp numbers to the job's range",
    )
    duplicates: Duplicates | None = Field(
        default=None,
        description=(
            "first, last, largest, smallest or reject: the row to use if a user has several for "
            "the same epoch or time"
        ),
    )

    @model_validator(mode="after")
    def _words_are_distinct(self) -> Self:
        both = {folded(word) for word in self.true} & {folded(word) for word in self.false}
        if both:
            raise ValueError(
                f"true contains {min(both)!r}, and so does 'false'. Remove it from one of them"
            )
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Only configured keys, so that a job file and its deployed record agree.
        written = _without_empty(write(self))
        return {key: value for key, value in written.items() if (key, value) != ("separator", ",")}

    @property
    def zone(self) -> tzinfo | None:
        return None if self.timezone is None else ZoneInfo(self.timezone)

    @property
    def words(self) -> dict[str, str]:
        """Meaning, 1 or 0, of each configured text, normalized by `folded`."""
        return {
            **{folded(word): "1" for word in self.true},
            **{folded(word): "0" for word in self.false},
        }

    def rejection(self, domain: ValueDomain) -> str | None:
        """Return why the format does not fit a domain, or None; the message starts with a key.

        >>> InputFormat(clamp=True).rejection(BooleanDomain())
        'clamp requires numbers with a range, but this job is about one value'
        """
        about = f"but this job is about {domain.about}"
        if domain.fields is not None:
            for key in ("true", "false", "values", "clamp", "duplicates"):
                if getattr(self, key):
                    return f"{key} does not apply to {domain.about}. Remove the key"
        if (self.true or self.false) and not isinstance(domain, BooleanDomain):
            key = "true" if self.true else "false"
            return f"{key} requires values 0 or 1, {about}. Use 'values: {{old: new}}'"
        if self.clamp and domain.ends is None:
            return f"clamp requires numbers with a range, {about}"
        if self.decimal is not None and not domain.numeric:
            return f"decimal requires numbers, {about}"
        if domain.columns is not None and self.duplicates not in (None, "reject"):
            return f"duplicates is {self.duplicates}, {about}, one per user; expected reject"
        if domain.columns is not None and self.format not in (None, "csv"):
            return f"format is {self.format}, {about}; expected csv"
        if domain.column is not None and self.duplicates not in (None, "first"):
            return f"duplicates is {self.duplicates}, {about}; expected first, the default"
        if domain.columns is not None and self.values:
            return f"values requires one value per row, {about}"
        return None

    def with_changes(self, changes: Mapping[str, Any]) -> InputFormat:
        """Return a copy with changed keys; changed columns are merged with existing columns."""
        written = self.model_dump(mode="json")
        columns = {**written.get("columns", {}), **changes.get("columns", {})}
        values = {**written, **changes, **({"columns": columns} if columns else {})}
        try:
            return InputFormat.model_validate_json(json.dumps(values))
        except ValidationError as error:
            raise JobError(explain(error, InputFormat)) from None


def folded(text: str) -> str:
    return text.strip().casefold()


def _without_empty(written: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in written.items() if value}


AS_IT_IS = InputFormat()
