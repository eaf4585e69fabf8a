"""Sections of an experiment file, before grids are expanded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dpstream.pipeline.jobs.epochs import LONGEST_HORIZON, Epochs
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.topics.names import JOB_NAME_MAX, validate_job_name
from experiments.evaluation.drawn_items import (
    DrawnItems,
    SelectionSets,
    ZipfItems,
    ZipfQueries,
)

MOST_SEEDS = 1_000_000

ALL_USERS = "users"
"""Value of ``minimum`` that stands for the number of users in the data."""


def _checked_name(name: str) -> str:
    validate_job_name(name)
    return name


def _values(value: object) -> tuple[object, ...]:
    values = tuple(value) if isinstance(value, list) else (value,)
    if not values:
        raise ValueError("an empty list")
    return values


Item = TypeVar("Item")
Grid = Annotated[tuple[Item, ...], BeforeValidator(_values)]
Users = Annotated[int, Field(ge=1, le=100_000_000)]
Error = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=LONGEST_HORIZON)]


class Synthetic(Section):
    """Users with values of 0 or 1 that change at random epochs."""

    users: Grid[Users] = Field(
        description="an integer from 1 to 100000000, or a list of such integers"
    )
    epochs: Grid[Count] = Field(
        description=f"an integer from 1 to {LONGEST_HORIZON}, or a list of such integers"
    )
    changes: Grid[Count] | None = Field(
        default=None,
        description="the maximum number of changes per user, an integer of at least 1, or a list "
        "of such numbers; default: the job's max_changes",
    )
    seed: int = Field(default=1, ge=0, description="an integer of at least 0")


class Zipf(Section):
    """Users with items from the job's domain, drawn by Zipf's law for every seed."""

    users: Grid[Users] = Field(
        description="an integer from 1 to 100000000, or a list of such integers"
    )
    exponent: float = Field(default=1.1, ge=0, le=10, description="a number from 0 to 10")
    held: int = Field(default=1, ge=1, le=1024, description="an integer from 1 to 1024")
    answers: bool = Field(
        default=False,
        description="whether items are queries with answers from 0 to 1, each of which a user "
        "rounds at random to 0 or 1: true or false",
    )
    seed: int = Field(default=1, ge=0, description="an integer of at least 0")

    def sources(self) -> Iterator[DrawnItems]:
        for users in self.users:
            kind = ZipfQueries if self.answers else ZipfItems
            yield kind(users, self.seed, exponent=self.exponent, held=self.held)


class Selection(Section):
    """Users who all have one item from the job's domain; half of them have any given other item."""

    users: Grid[Users] = Field(
        description="an integer from 1 to 100000000, or a list of such integers"
    )
    seed: int = Field(default=1, ge=0, description="an integer of at least 0")

    def sources(self) -> Iterator[DrawnItems]:
        for users in self.users:
            yield SelectionSets(users, self.seed)


class Data(Section):
    """One input, or a grid of synthetic inputs."""

    name: str | None = Field(default=None, min_length=1, description="its name in results")
    change_log: str | None = Field(
        default=None, min_length=1, description="a file, relative to the experiment file"
    )
    epochs: Epochs | None = None
    input: InputFormat | None = None
    prepare: str | None = Field(
        default=None, description="a command that makes the file when the file name is appended"
    )
    axes: tuple[str, ...] = Field(
        default=(),
        description="names of the values' coordinates in pictures, a list with one text per "
        "coordinate",
    )
    top_items: int | None = Field(
        default=None,
        ge=1,
        description="the maximum number of users who can have an item at an epoch, if that is "
        "public: estimates clipped to this maximum are also compared; an integer of at least 1",
    )
    synthetic: Synthetic | None = None
    zipf: Zipf | None = None
    selection: Selection | None = None

    @property
    def drawn(self) -> Zipf | Selection | None:
        return self.zipf or self.selection

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        given = (self.change_log, self.synthetic, self.zipf, self.selection)
        if sum(each is not None for each in given) != 1:
            keys = "'change_log', 'synthetic', 'zipf', 'selection'"
            raise ValueError(f"expected exactly one of {keys}")
        if self.change_log is None and self.top_items is not None:
            raise ValueError(
                "'top_items' is set, but items are not from a 'change_log'. Remove 'top_items'"
            )
        if (self.change_log is None) != (self.epochs is None):
            raise ValueError("'epochs' and 'change_log' must be set together, or neither")
        if self.change_log is None and self.input is not None:
            raise ValueError("'input' applies only to rows from a 'change_log'. Remove it")
        if self.epochs is not None and self.epochs.renew:
            raise ValueError("'epochs' must be a single horizon. Remove 'renew'")
        return self


class JobGrid(Section):
    protocol: str = Field(description=f"one of {', '.join(PROTOCOLS)}")
    parameters: dict[str, Any] = Field(description="the protocol's parameters, or lists of them")
    label: str | None = Field(default=None, min_length=1, description="its name in results")
    shuffle: dict[str, Any] = Field(
        default={},
        description=f"as in a job file; for drawn data, 'minimum' can be '{ALL_USERS}'",
    )
    drawn: bool = Field(
        default=True,
        description="whether to show its estimates of sets of items in pictures, which requires "
        "computing them again: true or false",
    )
    references: dict[str, dict[str, tuple[Error | Literal["none"], ...]]] = Field(
        default={},
        description="root mean squared errors from elsewhere, for comparison: for each name in "
        "the experiment's `references` and each name of an estimate, a list with one number, or "
        "'none', per combination of parameters",
    )

    @model_validator(mode="after")
    def _something_to_try(self) -> Self:
        for key, value in self.parameters.items():
            if value == []:
                raise ValueError(f"'{key}' is an empty list; expected at least one value to try")
        return self


class ExperimentFile(Section):
    name: Annotated[str, AfterValidator(_checked_name)] = Field(
        description=f"1 to {JOB_NAME_MAX} lower-case letters, digits, - and _, starting with a "
        "letter or digit; quoted if it has only digits"
    )
    title: str = Field(default="", description="a text: what it measures")
    reproduces: str = Field(default="", description="a text: the table of a paper")
    data: tuple[Data, ...] = Field(description="a list of inputs")
    jobs: tuple[JobGrid, ...] = Field(description="a list of protocols to try")
    seeds: int = Field(
        ge=1, le=MOST_SEEDS, description=f"the number of seeds, an integer from 1 to {MOST_SEEDS}"
    )
    references: dict[str, str] = Field(
        default={},
        description="results from elsewhere, for comparison: for each name, a sentence that "
        "explains them",
    )

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        for key in ("data", "jobs"):
            if not getattr(self, key):
                raise ValueError(f"'{key}' is empty; expected at least one entry")
        named = {name for job in self.jobs for name in job.references}
        if named and len(self.data) > 1:
            raise ValueError(f"'references' requires one input; 'data' has {len(self.data)}")
        if unknown := sorted(named - set(self.references)):
            raise ValueError(f"'references' must explain {unknown[0]!r}, which a job refers to")
        return self
