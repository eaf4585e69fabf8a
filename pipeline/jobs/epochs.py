"""Section `epochs` of a job file: length of the horizon, recurrence and calendar."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from dpstream.pipeline.jobs.shuffle import DURATION
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.values.times import EpochCalendar

LONGEST_HORIZON = 2**20


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


def _instant(value: object) -> datetime:
    return _in_utc(datetime.fromisoformat(_text(value)), UTC)


def _in_utc(instant: datetime, zone: tzinfo) -> datetime:
    try:
        return (instant if instant.tzinfo else instant.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999") from None


def _zone_name(value: object) -> str:
    name = _text(value)
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("no such time zone") from None
    return name


Instant = Annotated[
    datetime,
    PlainValidator(_instant),
    PlainSerializer(lambda instant: instant.isoformat().replace("+00:00", "Z"), str),
]
CalendarDuration = Annotated[
    Duration, PlainValidator(lambda value: parse_duration(_text(value))), PlainSerializer(str, str)
]


def horizons_between(first: int, last: int, count: int) -> int:
    """Return the number of horizons of `count` epochs that overlap the epochs `first` to `last`.

    A user who participates from `first` to `last` is charged once per horizon. A device instead
    counts the horizons for which it draws.

    >>> horizons_between(60, 60, 60), horizons_between(60, 61, 60)
    (1, 2)
    """
    return (last - 1) // count - (first - 1) // count + 1


class Epochs(Section):
    count: int = Field(
        ge=1, le=LONGEST_HORIZON, description=f"an integer from 1 to {LONGEST_HORIZON}"
    )
    start: Instant | None = Field(
        default=None,
        description="a date or time, such as 2013-10-01 or 2013-10-01T06:00Z, in UTC or "
        "epochs.timezone",
    )
    length: CalendarDuration | None = Field(default=None, description=DURATION)
    timezone: Annotated[str, PlainValidator(_zone_name)] | None = Field(
        default=None,
        description=(
            "the name of a time zone for the days and months of epochs, such as Europe/Berlin"
        ),
    )
    renew: bool = Field(
        default=False,
        description=(
            "true or false: whether each horizon is followed by another one, which charges the "
            "same privacy loss again"
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _by_the_clocks_there(cls, values: Any) -> Any:
        try:
            start = datetime.fromisoformat(values["start"])
            moment = _in_utc(start, ZoneInfo(values["timezone"]))
        except (LookupError, TypeError, ValueError, OSError):
            return values
        return {**values, "start": moment.isoformat()}

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        return {key: value for key, value in values.items() if (key, value) != ("timezone", None)}

    @cached_property
    def calendar(self) -> EpochCalendar | None:
        if self.start is None or self.length is None:
            return None
        zone = None if self.timezone is None else ZoneInfo(self.timezone)
        return EpochCalendar(self.start, self.length, zone)

    def horizon_of(self, epoch: int) -> int:
        return (epoch - 1) // self.count

    def first_of_horizon(self, epoch: int) -> int:
        return self.horizon_of(epoch) * self.count + 1

    def local(self, epoch: int) -> int:
        """Return an epoch's number within its horizon, counted from 1, as protocols use it."""
        return (epoch - 1) % self.count + 1

    def dated(self, epoch: int, last: str = "", more: Sequence[str] = ()) -> str:
        """Format an epoch's number and `last`, then `more` and the epoch's start in brackets."""
        calendar = self.calendar
        known = [*more, *([] if calendar is None else [calendar.shown(epoch)])]
        return f"{epoch:,}{last}" + (f" ({', '.join(known)})" if known else "")

    @model_validator(mode="after")
    def _placed_in_time(self) -> Self:
        if (self.start is None) != (self.length is None):
            missing = "start" if self.start is None else "length"
            raise ValueError(f"{missing} is missing. Set both 'start' and 'length', or neither")
        if self.start is None and self.timezone is not None:
            raise ValueError("start is missing. Set 'start' and 'length', or remove 'timezone'")
        if self.calendar is not None:
            try:
                self.calendar.start_of(self.count + 1)
            except OverflowError:
                raise ValueError(
                    "length is too long: the last epoch ends after year 9999"
                ) from None
        return self
