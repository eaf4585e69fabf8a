"""Keys of a job file for questions about events: measures, attributes, breakdowns and ratios.

::

    measures:
      wau: {type: active}
      mau: {type: active, within: 4}
    attributes: {platform: {column: os, values: [ios, android], public: true}}
    by: [platform]
    ratios: {stickiness: {numerator: wau, denominator: mau}}

A *measure* turns a device's own events into one answer per epoch. A *question* is a measure,
possibly together with private attributes: a device answers about one cell of the product. Public
attributes divide the devices into groups, one for each cell of the product of these attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from dpstream.pipeline.jobs.epochs import CalendarDuration, Epochs
from dpstream.pipeline.jobs.job_problems import shown
from dpstream.pipeline.jobs.shuffle import DURATION
from dpstream.pipeline.jobs.wording import Section, Wording
from dpstream.pipeline.values.durations import Duration
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.randomizers.measures import OTHER, Measure
from dpstream.randomizers.parameter_checks import LEAST_DELTA, MOST_CROWDS

if TYPE_CHECKING:
    from dpstream.pipeline.values.event_rows import EventDomain

Trust: TypeAlias = Literal["none", "shuffle"]

NONE: Final = "none"
"""Value of a private attribute, or answer of a measure, before there is any."""
NEVER: Final = "never"
EARLIER: Final = "earlier"
"""Values of `first_seen` without an event, and with one before epoch 1; and of `enrolled`."""

SPARE: Final = "spare {}"
"""Name of a cell of a private attribute for a value that a running job names later."""

MOST_CELLS: Final = 4_096
MOST_SPARE: Final = 1_000
MOST_PANELS: Final = 255
MOST_ATTRIBUTES: Final = 3
"""Maximum number of attributes in one breakdown."""
MOST_MEASURES: Final = 64
DEFAULT_MINIMUM: Final = 100

KEYS: Final = (
    *("measures", "attributes", "by", "trust", "ratios", "history", "background", "by_minimum"),
)

RESERVED: Final = frozenset(
    {
        *("user", "time", "epoch", "value", "event", "number", "label", "measure", "statistic"),
        *("estimate", "job", "instance", "le", "dpstream_job", "stage", "by", "item"),
    }
)
_NAME: Final = Field(
    pattern="^[a-z][a-z0-9_]{0,39}$",
    description="a name of up to 40 lower-case letters, digits and _, starting with a letter",
)
Name: TypeAlias = Annotated[str, _NAME]
Column: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


MeasureKeys: TypeAlias = Annotated[
    Measure, PlainValidator(Measure.from_json), PlainSerializer(Measure.to_json, dict)
]
Events: TypeAlias = Annotated[
    tuple[Column, ...],
    BeforeValidator(_as_tuple),
    Field(default=(), description="the name of an event, or a list of names. Default: all events"),
]


class HiddenSizes(Section):
    """Noise that hides how many devices are in each group of a public attribute.

    The shuffler deletes messages of every group at random: Algorithm 3 of *Encode, Shuffle, Analyze
    Privacy Revisited*.
    """

    epsilon: float = Field(
        gt=0,
        description="a number above 0: the privacy loss from the sizes of all groups together",
    )
    delta: float = Field(
        ge=LEAST_DELTA, lt=1, description=f"a number of at least {LEAST_DELTA:g} and below 1"
    )


class AttributeKeys(Section):
    values: tuple[Column, ...] = Field(
        (),
        max_length=MOST_CROWDS,
        description=(
            f"a list of up to {MOST_CROWDS:,} labels, or {{file: NAME}} for a file with one per "
            "line"
        ),
    )
    public: bool = Field(
        False, description="true or false: whether everyone may know the value of every device"
    )
    column: Column | None = Field(
        None, description="the column with the attribute. Default: the attribute's name"
    )
    spare: int = Field(
        0,
        ge=0,
        le=MOST_SPARE,
        description=f"an integer from 0 to {MOST_SPARE:,}: the number of values named later",
    )
    named: dict[Column, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="the first epoch of each value that a running job has named; set by 'deploy'",
    )
    first_seen: CalendarDuration | None = Field(
        None, description=f"the period of a device's first event; {DURATION}"
    )
    event: Events = ()
    enrolled: CalendarDuration | None = Field(
        None, description=f"the period in which a user was enrolled, which is public; {DURATION}"
    )
    hide_sizes: HiddenSizes | None = Field(
        None, description="{epsilon: x, delta: y}: the noise in the number of devices of each group"
    )

    @property
    def period(self) -> Duration | None:
        """Length of the periods that are the values; None for listed values."""
        return self.first_seen or self.enrolled

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value}

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        kinds = [bool(self.values), self.first_seen is not None, self.enrolled is not None]
        if sum(kinds) != 1:
            raise ValueError(
                "values is missing. Set exactly one of 'values', 'first_seen' and 'enrolled'"
            )
        if self.enrolled is not None:
            if "public" in self.model_fields_set and not self.public:
                raise ValueError(
                    "public is false, but everyone can see when a user was enrolled. Remove the key"
                )
            object.__setattr__(self, "public", True)
        if self.hide_sizes is not None and not self.values:
            raise ValueError("hide_sizes requires 'values'. Remove one of the keys")
        if self.first_seen is not None and self.public:
            raise ValueError(
                "public is true, but the period of a first event follows from events, which are "
                "private. Remove 'public', or use 'enrolled' for the public period of enrollment"
            )
        if self.first_seen is not None and (self.column or self.spare):
            key = "column" if self.column else "spare"
            raise ValueError(f"{key} does not apply to first_seen. Remove the key")
        if self.event and self.first_seen is None:
            raise ValueError("event requires first_seen. Remove the key")
        if self.hide_sizes is not None and not self.public:
            raise ValueError("hide_sizes requires a public attribute. Set 'public: true'")
        if self.public and (self.spare or self.named):
            raise ValueError(
                "spare requires a private attribute: users are divided by a public one when they "
                "enroll, until the horizon ends. Remove 'spare' or 'public'"
            )
        if len(set(self.values)) < len(self.values) or "" in self.values:
            raise ValueError("values must be distinct, non-empty labels")
        if self.named.keys() != set(self.values[len(self.values) - len(self.named) :]):
            raise ValueError("named must have the last of 'values'. Remove the key")
        if strange := set(self.values) & set(self.reserved):
            raise ValueError(f"values has {shown(min(strange))}, a name of a spare cell. Rename it")
        for value in self.values:
            if value in (OTHER, NONE) or set(value) & set("=,:") or value != value.strip():
                raise ValueError(
                    f"values has label {shown(value)}; expected labels other than {OTHER} and "
                    f"{NONE}, without spaces at the ends and without '=', ',' and ':'"
                )
        return self

    @property
    def reserved(self) -> tuple[str, ...]:
        """Names of the spare cells that have no value yet; a name is never used twice."""
        first = len(self.named) + 1
        return tuple(map(SPARE.format, range(first, first + self.spare)))


class RatioKeys(Section):
    numerator: str = Field(description="the name of a measure")
    denominator: str = Field(description="the name of a measure")


@dataclass(frozen=True, slots=True)
class Question:
    """One measure, alone or together with private attributes.

    Attributes:
        name: Name of the measure.
        attributes: Names and all values of the private attributes, in order; () for the measure
            alone. Values are in the order of `Measured.values_of`.
    """

    name: str
    measure: Measure
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """Texts of the measure's answers, numbered from 0 as in `History.answer`."""
        return ("no", "yes") if self.measure.answer == "boolean" else (NONE, *self.measure.labels)

    @property
    def kind(self) -> Literal["boolean", "mean", "labels", "numbers"]:
        return "labels" if self.attributes else self.measure.answer

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the items 1, 2, ... of a question with labels.

        The item of a cell is 1 + the number that the answer and the values of the attributes form
        as digits, each counted from 0 in the order of `answers` and `attributes`.

        >>> Question("wau", Measure("active"), (("plan", ("none", "other", "pro")),)).labels[-1]
        'wau=yes,plan=pro'
        """
        if not self.attributes:
            return self.measure.labels
        names = (self.name, *(name for name, _ in self.attributes))
        cells = product(self.answers, *(values for _, values in self.attributes))
        return tuple(
            ",".join(f"{name}={value}" for name, value in zip(names, cell, strict=True))
            for cell in cells
        )

    @property
    def cells(self) -> int:
        sizes = (len(values) for _, values in self.attributes)
        return len(self.answers) * prod(sizes)


class Measured(Wording):
    """Keys about events, which an ordinary job leaves out."""

    if TYPE_CHECKING:
        epochs: Epochs
    measures: dict[Name, MeasureKeys] | None = Field(
        None,
        min_length=1,
        max_length=MOST_MEASURES,
        description="{NAME: {type: ...}, ...}: what each device computes from its own events",
    )
    attributes: dict[Name, AttributeKeys] | None = Field(
        None, max_length=64, description="{NAME: {values: [...]}, ...}"
    )
    by: tuple[Annotated[tuple[str, ...], BeforeValidator(_as_tuple)], ...] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="a list of attributes, or of lists of attributes that are crossed",
    )
    trust: Trust | None = Field(
        None, description="none or shuffle: the party that sees reports without noise"
    )
    ratios: dict[Name, RatioKeys] | None = Field(
        None, max_length=16, description="{NAME: {numerator: MEASURE, denominator: MEASURE}, ...}"
    )
    history: Literal["complete"] | None = Field(
        None, description="complete: the input has all events of the windows before epoch 1"
    )
    background: bool | None = Field(
        None,
        description=(
            "true if reports leave devices on a schedule that does not depend on use of the app"
        ),
    )
    by_minimum: int | None = Field(
        None, ge=1, description="the smallest number of devices in a public group that is shown"
    )

    @model_validator(mode="after")
    def _measured_can_be(self) -> Self:
        attributes = (self.attributes or {}).items()
        hidden = [name for name, keys in attributes if keys.hide_sizes is not None]
        if self.measures is None or hidden:
            self._check_crowds(hidden)
            return self
        for name in (*self.measures, *(self.attributes or {})):
            if name in RESERVED:
                raise ValueError(f"measures and attributes cannot be called {name}: choose another")
        if both := set(self.measures) & set(self.attributes or {}):
            raise ValueError(f"attributes has {min(both)}, which is also a measure. Rename one")
        self._check_breakdowns(self.attributes or {})
        self._check_spares(self.attributes or {})
        for name, ratio in (self.ratios or {}).items():
            for each in (ratio.numerator, ratio.denominator):
                if each not in self.measures:
                    raise ValueError(
                        f"ratios.{name} refers to {shown(each)}; expected one of: "
                        f"{', '.join(self.measures)}"
                    )
        return self

    def _check_crowds(self, hidden: Sequence[str]) -> None:
        allowed = ("attributes", "by") if hidden else ()
        for key in KEYS[1:]:
            if getattr(self, key) is not None and key not in allowed:
                raise ValueError(f"{key} requires 'measures'. Remove the key")
        if not hidden:
            return
        (name, *others), column = hidden, self.column_of(hidden[0])
        if self.measures is not None:
            raise ValueError(
                f"attributes.{name} has hide_sizes, which cannot be combined with 'measures'. "
                "Remove hide_sizes"
            )
        if others or len(self.attributes or {}) > 1 or self.by != ((name,),):
            raise ValueError(
                f"by is {shown([list(each) for each in self.by or ()])}; expected [{name}], the "
                "only attribute of a job with hide_sizes"
            )
        if column.strip().casefold() in ("user", "epoch", "time", "value"):
            raise ValueError(
                f"attributes.{name} is in column {column}; expected a public column other than "
                "user, epoch, time and value"
            )

    def column_of(self, name: str) -> str:
        """Return the column of the input with an attribute."""
        return (self.attributes or {})[name].column or name

    @property
    def crowds(self) -> tuple[str, AttributeKeys] | None:
        attributes = (self.attributes or {}).items()
        return next((item for item in attributes if item[1].hide_sizes is not None), None)

    def _check_breakdowns(self, attributes: Mapping[str, AttributeKeys]) -> None:
        for each in self.by or ():
            for name in each:
                if name not in attributes:
                    raise ValueError(
                        f"by contains {shown(name)}; expected attributes: "
                        f"{', '.join(attributes) or 'declare them under attributes'}"
                    )
            if len(set(each)) < len(each) or not 0 < len(each) <= MOST_ATTRIBUTES:
                raise ValueError(
                    f"by contains {shown(list(each))}; expected 1 to {MOST_ATTRIBUTES} different "
                    "attributes in a breakdown"
                )
        for question in self.questions if self.measures else ():
            if question.attributes and question.measure.answer in ("mean", "numbers"):
                raise ValueError(
                    f"by has a private attribute, which measure {question.name} cannot be crossed "
                    "with: its answer is a number. Use at_least or a list of buckets, or make the "
                    "attribute public"
                )
            if question.attributes and question.cells > MOST_CELLS:
                raise ValueError(
                    f"by gives measure {question.name} {question.cells:,} cells; expected at most "
                    f"{MOST_CELLS:,}. Use fewer values or attributes"
                )
        if self.panels > MOST_PANELS:
            raise ValueError(
                f"by gives {self.panels:,} panels ({len(self.groups):,} public groups times "
                f"{len(self.questions):,} questions); expected at most {MOST_PANELS}. Use fewer "
                "measures, breakdowns or public values"
            )

    def _check_spares(self, attributes: Mapping[str, AttributeKeys]) -> None:
        used = {name for each in self.by or () for name in each}
        columns = [keys.column or name for name, keys in attributes.items() if not keys.first_seen]
        columns += [each.label for each in (self.measures or {}).values() if each.label]
        for name, keys in attributes.items():
            if not (keys.spare or keys.named):
                continue
            if name not in used:
                raise ValueError(
                    f"attributes.{name}.spare requires a breakdown by {name}. Add {name} to 'by', "
                    "or remove 'spare'"
                )
            if self.trust == "shuffle":
                raise ValueError(
                    f"attributes.{name}.spare requires that no party is trusted, because its "
                    "values can be named in response to results. Remove 'spare' or 'trust'"
                )
            if columns.count(keys.column or name) > 1:
                raise ValueError(
                    f"attributes.{name}.spare requires a column of its own; column "
                    f"{keys.column or name} is used twice. Remove 'spare', or copy the column"
                )

    @property
    def public_attributes(self) -> tuple[str, ...]:
        """Public attributes of a breakdown of measures, in the order of declaration."""
        if self.measures is None:
            return ()
        used = {name for each in self.by or () for name in each}
        declared = (self.attributes or {}).items()
        return tuple(name for name, keys in declared if keys.public and name in used)

    @property
    def public_columns(self) -> dict[str, str]:
        """Column of each of the `public_attributes` in a user list."""
        attributes = self.attributes or {}
        return {name: attributes[name].column or name for name in self.public_attributes}

    @property
    def public_breakdowns(self) -> tuple[tuple[str, ...], ...]:
        """Distinct sets of public attributes by which questions are broken down."""
        public = set(self.public_attributes)
        parts = (tuple(name for name in each if name in public) for each in self.by or ())
        return tuple(dict.fromkeys(part for part in parts if part))

    @cached_property
    def groups(self) -> tuple[Mapping[str, str], ...]:
        """Public groups, each as values by attribute; one group without public attributes."""
        names = self.public_attributes
        values = (self.all_values_of(name) for name in names)
        return tuple(dict(zip(names, cell, strict=True)) for cell in product(*values))

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """Questions of which each device is asked one.

        Without a trusted party, the measure alone is a question, and each breakdown by private
        attributes is another one. If the shuffler is trusted, the cells of all private attributes
        are one question, and their sums answer the others.
        """
        asked: list[Question] = []
        public = set(self.public_attributes)
        private = list(
            dict.fromkeys(
                tuple(name for name in each if name not in public) for each in self.by or ()
            )
        )
        if self.trust == "shuffle":
            private = [tuple(dict.fromkeys(name for each in private for name in each))]
        elif () not in private:
            private = [(), *private]
        for name, measure in (self.measures or {}).items():
            for each in private:
                values = tuple((attribute, self.values_of(attribute)) for attribute in each)
                asked.append(Question(name, measure, values))
        return tuple(asked)

    @cached_property
    def event_domain(self) -> EventDomain:
        """Fields of a row of events that measures and private attributes use."""
        from dpstream.pipeline.values.event_rows import EventDomain

        measures = list((self.measures or {}).values())
        names = [name for measure in measures for name in (*measure.event, *measure.steps)]
        labels = [(measure.label, measure.values) for measure in measures if measure.label]
        for name, keys in (self.attributes or {}).items():
            names += keys.event
            if not keys.public and keys.first_seen is None:
                labels.append((keys.column or name, keys.values))
        declared: dict[str, tuple[str, ...]] = {}
        for column, values in labels:
            declared[column] = tuple(dict.fromkeys((*declared.get(column, ()), *values)))
        starts: dict[str, Mapping[str, int]] = {}
        for name, keys in (self.attributes or {}).items():
            if keys.spare or keys.named:
                # No label is empty, and undeclared labels keep their number when one is declared.
                declared[keys.column or name] += ("",) * keys.spare
                starts[keys.column or name] = keys.named
        numbers = [measure.number for measure in measures if measure.number is not None]
        timed = [name for name, each in (self.measures or {}).items() if each.type == "days"]
        timed += [name for name, keys in (self.attributes or {}).items() if keys.first_seen]
        return EventDomain(names, numbers, declared, "".join(timed[:1]), starts)

    @property
    def panels(self) -> int:
        return len(self.groups) * len(self.questions)

    def period_calendar(self, name: str) -> EpochCalendar:
        """Return the calendar whose epochs are the periods of an attribute."""
        keys, calendar = (self.attributes or {})[name], self.epochs.calendar
        key = "first_seen" if keys.enrolled is None else "enrolled"
        if calendar is None:
            raise ValueError(
                f"attributes.{name} has {key}, which requires a calendar. Set epochs.start and "
                "epochs.length"
            )
        if self.epochs.renew:
            raise ValueError(
                f"attributes.{name} has {key}, but a recurring job has no last period. Remove "
                f"{key} or epochs.renew"
            )
        assert keys.period is not None
        return EpochCalendar(calendar.start, keys.period, calendar.zone)

    def period_of(self, name: str, moment: datetime) -> str:
        """Return the value of an `enrolled` attribute for users who are enrolled at a time.

        Raises `ValueError` for a time after the last epoch.
        """
        values, number = self.all_values_of(name), self.period_calendar(name).epoch_of(moment)
        if number >= len(values):
            raise ValueError(f"is after the last epoch, which is in the period {values[-1]}")
        return values[max(0, number)]

    def enrolled_in(self, epoch: int) -> dict[str, str]:
        """Return the value of each `enrolled` attribute for users who are enrolled at an epoch."""
        calendar, attributes = self.epochs.calendar, self.attributes or {}
        names = [name for name in self.public_attributes if attributes[name].enrolled is not None]
        if calendar is None:
            return {}
        return {name: self.period_of(name, calendar.start_of(epoch)) for name in names}

    def all_values_of(self, name: str) -> tuple[str, ...]:
        """Return all values of an attribute that groups or cells have."""
        keys = (self.attributes or {})[name]
        if keys.enrolled is not None:
            return (EARLIER, *self._periods_of(name))
        return (*keys.values, OTHER) if keys.public else self.values_of(name)

    def shown_values_of(self, name: str) -> tuple[str, ...]:
        """Return all values of an attribute except those of unnamed spare cells."""
        reserved = (self.attributes or {})[name].reserved
        return tuple(value for value in self.all_values_of(name) if value not in reserved)

    def values_of(self, name: str) -> tuple[str, ...]:
        """Return all values of a private attribute, in the order of their numbers from 0."""
        keys = (self.attributes or {})[name]
        if keys.first_seen is None:
            return (NONE, OTHER, *keys.values, *keys.reserved)
        return (NEVER, EARLIER, *self._periods_of(name))

    def _periods_of(self, name: str) -> Iterator[str]:
        calendar, periods = self.epochs.calendar, self.period_calendar(name)
        assert calendar is not None
        last = periods.epoch_of(calendar.start_of(self.epochs.count + 1) - timedelta.resolution)
        return (_period(periods, periods.length, number) for number in range(1, last + 1))


class MeasuredEpochs(Measured):
    """The keys about events of a job file, checked before the rest of the job."""

    epochs: Epochs


def with_measures_in_order(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's values with measures in the order of the protocol's questions.

    In records of jobs, keys are sorted, but a user's values have one answer per question.
    """
    measures, parameters = values.get("measures"), values.get("parameters")
    if not (isinstance(measures, Mapping) and isinstance(parameters, Mapping)):
        return values
    questions = parameters.get("questions")
    listed = questions if isinstance(questions, list) else []
    names = [each.get("name") for each in listed if isinstance(each, Mapping)]
    if not measures.keys() <= set(names):
        return values
    return {**values, "measures": {name: measures[name] for name in names if name in measures}}


def _period(periods: EpochCalendar, length: Duration, number: int) -> str:
    text = periods.shown(number)
    return text.removesuffix("-01") if length.months and len(text) == len("2026-01-01") else text
