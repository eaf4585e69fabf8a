"""Jobs: what a job file says, every value checked and every default filled in.

A job file is YAML. Four keys are enough::

    name: weekly-students
    protocol: future_rand
    parameters: {epsilon: 4, changes: 4}
    epochs: {count: 170}

What the others allow is said by their descriptions below, which messages about wrong values quote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    create_model,
    model_validator,
)

from pipeline.jobs.domains import with_labels
from pipeline.jobs.job_problems import (
    JobError,
    Problem,
    explain,
    make_from_yaml,
    read_settings,
    shown,
)
from pipeline.protocols.protocol import Law, Protocol
from pipeline.protocols.registry import PROTOCOLS
from pipeline.values.durations import FORMS, Duration, parse_duration
from pipeline.values.value_domains import ValueDomain
from randomizers.guarantee import Guarantee
from topics.names import (
    JOB_NAME_MAX,
    Role,
    TopicSettings,
    job_topics,
    topic_name,
    validate_job_name,
)

LONGEST_HORIZON = 2**20
"""The most epochs of a horizon."""

_LENGTHS_OF_TIME = ("epochs.length", "shuffle.grace", "topics.retention")

_DURATION = f"a duration above 0, at most 1000 years: {FORMS}"
_FIXED_DURATION = f"{_DURATION}, but no months or years"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return value


def _job_name(name: str) -> str:
    validate_job_name(name)
    return name


def _instant(value: object) -> datetime:
    instant = datetime.fromisoformat(_text(value))
    if instant.tzinfo is None:
        return instant.replace(tzinfo=UTC)
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999") from None


Instant = Annotated[
    datetime,
    PlainValidator(_instant),
    PlainSerializer(lambda instant: instant.isoformat().replace("+00:00", "Z"), str),
]
CalendarDuration = Annotated[
    Duration, PlainValidator(lambda value: parse_duration(_text(value))), PlainSerializer(str, str)
]
Seconds = Annotated[
    float,
    PlainValidator(lambda value: parse_duration(_text(value)).timedelta().total_seconds()),
    PlainSerializer(lambda seconds: str(Duration(exact=timedelta(seconds=seconds))), str),
]


class Section(BaseModel):
    """A group of keys: none may be unknown, no value is bent into shape, nothing changes later."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Epochs(Section):
    """A horizon, whether others follow, and, for input that carries times, when epochs begin."""

    count: int = Field(
        ge=1, le=LONGEST_HORIZON, description=f"a whole number from 1 to {LONGEST_HORIZON}"
    )
    start: Instant | None = Field(
        default=None, description="a date or time in UTC, such as 2013-10-01 or 2013-10-01T06:00Z"
    )
    length: CalendarDuration | None = Field(default=None, description=_DURATION)
    renew: bool = Field(
        default=False,
        description="true or false: whether another horizon of count epochs follows every one that "
        "is over, for the same privacy loss again",
    )

    @model_validator(mode="after")
    def _placed_in_time(self) -> Self:
        if (self.start is None) != (self.length is None):
            missing = "start" if self.start is None else "length"
            raise ValueError(f"{missing} is missing: give start and length, or neither of them")
        if self.start is not None and self.length is not None:
            try:
                self.length.epoch_start(self.start, self.count + 1)
            except OverflowError:
                raise ValueError(
                    "length is too long: the last epoch ends after year 9999"
                ) from None
        return self


class Shuffle(Section):
    """When a window closes, and how it is released."""

    order: Literal["sorted", "random"] = Field(default="sorted", description="sorted or random")
    minimum: int = Field(
        default=100,
        ge=1,
        description="the fewest devices a window is released with, a whole number from 1 on",
    )
    producers: int = Field(
        default=1,
        ge=1,
        description="how many producers must have registered before a window closes because "
        "everybody is in, a whole number from 1 on",
    )
    grace: Seconds = Field(default=60.0, description=_FIXED_DURATION)


class SizedShuffle(Shuffle):
    """For protocols whose noise is sized on the smallest window."""

    minimum: int = Field(
        ge=1,
        description="the fewest devices a window is released with, a whole number from 1 on; "
        "the noise is sized on it",
    )


class Topics(Section):
    """The job's topics."""

    partitions: int = Field(default=4, ge=1, le=1024, description="a whole number from 1 to 1024")
    replication: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description="copies of every record, a whole number from 1 to 32; left out: 1 on the local "
        "broker, the cluster's default elsewhere",
    )
    retention: Seconds = Field(
        default=timedelta(days=7).total_seconds(),
        description=_FIXED_DURATION,
    )

    @property
    def retention_ms(self) -> int:
        """How long raw and shuffled records are kept, in milliseconds."""
        return round(self.retention * 1000)


class Budget(Section):
    """The most that the people a job is about may be charged, by all deployments together."""

    epsilon: float = Field(gt=0, description="a number above 0")
    delta: float = Field(0.0, ge=0, lt=1, description="a number from 0 to below 1")


class Job(Section):
    """A job with nothing left open; `grace` and `retention` are in seconds."""

    name: Annotated[str, AfterValidator(_job_name)] = Field(
        description=f"1 to {JOB_NAME_MAX} lower-case letters, digits, - and _, the first of them a "
        "letter or digit; in quotes if there are only digits"
    )
    protocol: str
    parameters: Any
    epochs: Epochs
    shuffle: Shuffle = Shuffle()
    topics: Topics = Topics()
    population: str | None = Field(
        None,
        pattern=r"^[^\s/]{1,100}$",
        description="a name for the people this job is about, at most 100 characters, no spaces",
    )
    budget: Budget | None = None

    @property
    def protocol_entry(self) -> Protocol:
        """The protocol itself."""
        return PROTOCOLS[self.protocol]

    @property
    def domain(self) -> ValueDomain:
        """What a user's value may be."""
        return self.protocol_entry.values(self.parameters)

    @property
    def population_name(self) -> str:
        """The people the job is about; a job that does not name them has people of its own."""
        return self.population if self.population is not None else self.name

    @property
    def last_epoch(self) -> int | None:
        """Epochs are 1 to this one; None for a job that goes on without end."""
        return None if self.epochs.renew else self.epochs.count

    def horizon_of(self, epoch: int) -> int:
        """The horizon an epoch lies in, from 0 on."""
        return (epoch - 1) // self.epochs.count

    def local_epoch(self, epoch: int) -> int:
        """An epoch as protocols know it: its number within its horizon, from 1 on."""
        return (epoch - 1) % self.epochs.count + 1

    def position_of(self, epoch: int, last_epoch: int | None = None) -> str:
        """Where an epoch stands, in words; `last_epoch` is that of the job unless one is given.

        >>> weekly = {"epsilon": 1, "changes": 2}
        >>> make_job({"name": "a", "protocol": "future_rand", "parameters": weekly,
        ...           "epochs": {"count": 170, "renew": True}}).position_of(300)
        'epoch 300 (horizon 2)'
        """
        last_epoch = last_epoch or self.last_epoch
        last = "" if last_epoch is None else f" of {last_epoch:,}"
        horizon = f" (horizon {self.horizon_of(epoch) + 1:,})" if self.epochs.renew else ""
        return f"epoch {epoch:,}{last}{horizon}"

    def guarantee_of(self, law: Law) -> Guarantee:
        """What a calibrated law promises every user; for a job that renews, in each horizon."""
        guarantee = self.protocol_entry.randomizer(law).guarantee
        return guarantee.over(1) if self.epochs.renew else guarantee

    @property
    def partitions(self) -> int:
        """Partitions of the raw and the shuffled topic."""
        return self.topics.partitions

    def partition_of(self, epoch: int) -> int:
        """The partition in which all of an epoch lies."""
        return epoch % self.partitions

    def topic(self, role: Role) -> str:
        """The name of one of the job's topics."""
        return topic_name(self.name, role)

    def topic_settings(self) -> dict[Role, TopicSettings]:
        """The topics a deployment needs."""
        topics = self.topics
        return job_topics(self.name, topics.partitions, topics.replication, topics.retention_ms)

    def calibrate(self) -> Law:
        """The constants that give the best estimates under the stated guarantee.

        Raises:
            JobError: there are none for these parameters and this horizon.
        """
        try:
            return self.protocol_entry.calibrate(
                self.parameters, self.epochs.count, self.shuffle.minimum
            )
        except ValueError as error:
            raise JobError([Problem(("parameters",), str(error))]) from error

    def to_json(self) -> dict[str, Any]:
        """Every key and value, as a job file would have them."""
        return self.model_dump(mode="json", include=set(Job.model_fields))


def load_job(path: Path) -> Job:
    """Read a job file.

    Raises:
        JobError: it cannot be read, or says what a job cannot be.
    """
    return parse_job(read_settings(path, "job file"), source=str(path), folder=path.parent)


def parse_job(text: str, source: str = "job", folder: Path = Path()) -> Job:
    """Read the text of a job file; `source` names it in messages, files are named from `folder`.

    >>> job = parse_job('''
    ... name: students
    ... protocol: future_rand
    ... parameters: {epsilon: 4, changes: 4}
    ... epochs: {count: 170, start: 2013-10-01, length: P1W}
    ... ''')
    >>> job.last_epoch, job.shuffle.minimum, str(job.epochs.length)
    (170, 100, 'P7D')

    Raises:
        JobError: a line for everything that is wrong, with file, line, key and what is allowed.
    """
    return make_from_yaml(text, source, lambda values: make_job(values, folder))


def make_job(values: Mapping[str, Any], folder: Path = Path()) -> Job:
    """A job from the values of a job file, as JSON has them; files are named from `folder`.

    Raises:
        JobError: a line for everything that is wrong, with key and what is allowed.
    """
    return validate(Job, with_labels(values, folder))


JobType = TypeVar("JobType", bound=Job)


def validate(model: type[JobType], values: Mapping[str, Any]) -> JobType:
    """A `Job` or `DeployedJob` from JSON values, with the parameters of its protocol.

    Raises:
        JobError: as `make_job` does.
    """
    protocol = PROTOCOLS.get(str(values.get("protocol")))
    exact = _for_no_protocol(model) if protocol is None else _for_protocol(model, protocol)
    try:
        # JSON's strict mode is the one wanted: text is no number, but a list is a tuple.
        return exact.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise JobError(explain(error, exact)) from None


@cache
def _for_protocol(model: type[JobType], protocol: Protocol) -> type[JobType]:
    shuffle = (SizedShuffle, ...) if protocol.needs_shuffle else (Shuffle, Shuffle())
    fields: dict[str, Any] = {"parameters": (protocol.parameters, ...), "shuffle": shuffle}
    return create_model(model.__name__, __base__=model, **fields)


def _for_no_protocol(model: type[JobType]) -> type[JobType]:
    """Finds everything else that is wrong with a job whose protocol is not known."""
    registered = Field(description=f"one of {', '.join(PROTOCOLS)}")
    fields: dict[str, Any] = {"protocol": (Literal[tuple(PROTOCOLS)], registered)}
    return create_model(model.__name__, __base__=model, **fields)


def find_differences(old: Job, new: Job) -> dict[str, str]:
    """What a job file would have to change to turn `old` into `new`: ``old -> new`` by key."""
    before, after = dict(_flat(old.to_json())), dict(_flat(new.to_json()))
    return {
        key: _difference(_in_words(key, before.get(key)), _in_words(key, after.get(key)))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    }


def describe_difference(old: Job, new: Job) -> list[str]:
    """The same in words: ``key: old -> new``."""
    return [f"{key}: {difference}" for key, difference in find_differences(old, new).items()]


def _difference(old: object, new: object) -> str:
    before, after = _shown_or_left_out(old), _shown_or_left_out(new)
    if not isinstance(old, list) or not isinstance(new, list) or before != after:
        return f"{before} -> {after}"
    # Long lists that begin alike: what is only in one of them says more.
    earlier, later = set(old), set(new)
    gone = [item for item in old if item not in later]
    come = [item for item in new if item not in earlier]
    parts = [f"without {shown(gone)}"] * bool(gone) + [f"with {shown(come)}"] * bool(come)
    return " and ".join(parts) or "in another order"


def _shown_or_left_out(value: object) -> str:
    if isinstance(value, Duration):
        return value.in_words()
    return "left out" if value is None else shown(value)


def _in_words(key: str, value: object) -> object:
    """A length of time as such, which JSON has as text."""
    return parse_duration(str(value)) if value and key in _LENGTHS_OF_TIME else value


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
