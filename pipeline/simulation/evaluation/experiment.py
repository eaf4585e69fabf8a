"""Experiment files: which jobs are tried on which data, and how often.

An experiment file is YAML::

    name: accuracy
    data:
      - {change_log: logins.csv.gz, epochs: {count: 170}}
      - synthetic: {users: [10000, 100000], epochs: 256}
    jobs:
      - {protocol: future_rand, parameters: {epsilon: [1, 2, 4], changes: 4}}
    seeds: 20

Instead of a change log or synthetic changes, data may be items that are drawn over the domain of
each job: ``zipf: {users: 100000}`` or ``selection: {users: 1000}``; of these, ``shuffle: {minimum:
users}`` is their number.

Every parameter of a job, and users, epochs and changes of data that are made, may be a list: all
that its values combine to is tried. A parameter that is itself a list is one value, a list of lists
is a grid of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob, deploy_job
from pipeline.jobs.job_files import LONGEST_HORIZON, Epochs, make_job
from pipeline.jobs.job_problems import JobError, Problem, explain, make_from_yaml, read_settings
from pipeline.jobs.marked_yaml import Path as KeyPath
from pipeline.jobs.section import Section
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.evaluation.data import ChangeLogFile, Source, SyntheticChanges
from pipeline.simulation.evaluation.drawn_items import DrawnItems, SelectionSets, ZipfItems
from topics.names import JOB_NAME_MAX, validate_job_name

MOST_SEEDS = 1_000_000

ALL_USERS = "users"
"""As ``minimum``: as many as the data have."""


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
Count = Annotated[int, Field(ge=1, le=LONGEST_HORIZON)]


class Synthetic(Section):
    """Users whose value is 0 or 1 and changes at random epochs."""

    users: Grid[Users] = Field(
        description="a whole number from 1 to 100000000, or a list of such numbers"
    )
    epochs: Grid[Count] = Field(
        description=f"a whole number from 1 to {LONGEST_HORIZON}, or a list of such numbers"
    )
    changes: Grid[Count] | None = Field(
        default=None,
        description="the most changes of a user, a whole number from 1 on, or a list of such "
        "numbers; left out: as many as the job follows",
    )
    seed: int = Field(default=1, ge=0, description="a whole number from 0 on")


class Zipf(Section):
    """Users with items of any job's domain, drawn by Zipf's law anew for every seed."""

    users: Grid[Users] = Field(
        description="a whole number from 1 to 100000000, or a list of such numbers"
    )
    exponent: float = Field(default=1.1, ge=0, le=10, description="a number from 0 to 10")
    held: int = Field(default=1, ge=1, le=1024, description="a whole number from 1 to 1024")
    seed: int = Field(default=1, ge=0, description="a whole number from 0 on")

    def sources(self) -> Iterator[DrawnItems]:
        """One for every number of users."""
        for users in self.users:
            yield ZipfItems(users, self.seed, exponent=self.exponent, held=self.held)


class Selection(Section):
    """Users of whom all hold one item of any job's domain, and half of them each other one."""

    users: Grid[Users] = Field(
        description="a whole number from 1 to 100000000, or a list of such numbers"
    )
    seed: int = Field(default=1, ge=0, description="a whole number from 0 on")

    def sources(self) -> Iterator[DrawnItems]:
        """One for every number of users."""
        for users in self.users:
            yield SelectionSets(users, self.seed)


class Data(Section):
    """One input, or a grid of synthetic ones."""

    name: str | None = Field(default=None, min_length=1, description="what to call it in results")
    change_log: str | None = Field(
        default=None, min_length=1, description="a file, as seen from the experiment file"
    )
    epochs: Epochs | None = None
    prepare: str | None = Field(
        default=None, description="a command that makes the file, which is appended to it"
    )
    axes: tuple[str, ...] = Field(
        default=(), description="what the values are, a text for each coordinate, for pictures"
    )
    most_held: int | None = Field(
        default=None,
        ge=1,
        description="the most users that can have an item at an epoch, where that is public: "
        "estimates are also compared clipped to what is possible; a whole number from 1 on",
    )
    synthetic: Synthetic | None = None
    zipf: Zipf | None = None
    selection: Selection | None = None

    @property
    def drawn(self) -> Zipf | Selection | None:
        """Items that are drawn anew for every seed."""
        return self.zipf or self.selection

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        given = (self.change_log, self.synthetic, self.zipf, self.selection)
        if sum(each is not None for each in given) != 1:
            raise ValueError("give one of change_log, synthetic, zipf and selection")
        if self.change_log is None and self.most_held is not None:
            raise ValueError("most_held is about items of a change_log: leave it out")
        if (self.change_log is None) != (self.epochs is None):
            raise ValueError("epochs belong to a change_log: give both, or neither of them")
        if self.epochs is not None and self.epochs.renew:
            raise ValueError("epochs are those of one horizon: leave renew out")
        return self


class JobGrid(Section):
    """A protocol and the parameters to try."""

    protocol: str = Field(description=f"one of {', '.join(PROTOCOLS)}")
    parameters: dict[str, Any] = Field(description="the protocol's parameters, or lists of them")
    label: str | None = Field(default=None, min_length=1, description="what to call it in results")
    shuffle: dict[str, Any] = Field(
        default={},
        description=f"as in a job file; of data that are drawn, minimum may be {ALL_USERS}",
    )
    drawn: bool = Field(
        default=True,
        description="whether its estimates of sets of items are in pictures, for which they are "
        "made once more: true or false",
    )

    @model_validator(mode="after")
    def _something_to_try(self) -> Self:
        for key, value in self.parameters.items():
            if value == []:
                raise ValueError(f"parameters have an empty list for {key}: give values to try")
        return self


class ExperimentFile(Section):
    """The keys of an experiment file."""

    name: Annotated[str, AfterValidator(_checked_name)] = Field(
        description=f"1 to {JOB_NAME_MAX} lower-case letters, digits, - and _, the first of them a "
        "letter or digit; in quotes if there are only digits"
    )
    data: tuple[Data, ...] = Field(description="a list of inputs")
    jobs: tuple[JobGrid, ...] = Field(description="a list of protocols to try")
    seeds: int = Field(
        ge=1, le=MOST_SEEDS, description=f"how many, a whole number from 1 to {MOST_SEEDS}"
    )

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        for key in ("data", "jobs"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: give at least one entry")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One point of the grid: a job on an input, to be run with every seed.

    Attributes:
        data: what the input is called.
        source: makes the input.
        label: what the job is called.
        job: what is run, calibrated.
        axes: what the coordinates of values are called, as far as it is known.
        drawn: whether estimates of sets of items are in pictures.
    """

    data: str
    source: Source
    label: str
    job: DeployedJob
    axes: tuple[str, ...] = ()
    drawn: bool = True

    @property
    def of_sets(self) -> bool:
        """Whether users hold a set of items at every epoch, each of which is counted by itself."""
        return self.job.protocol_entry.per_epoch

    @property
    def parameters(self) -> dict[str, Any]:
        """The protocol's parameters, as a job file has them."""
        parameters: dict[str, Any] = self.job.to_json()["parameters"]
        return parameters

    @property
    def epsilon(self) -> float | None:
        """The epsilon asked for; None if the protocol's parameters have none of that name."""
        return getattr(self.job.parameters, "epsilon", None)

    @property
    def changes(self) -> int | None:
        """The changes followed; None if the protocol's parameters have none of that name."""
        return getattr(self.job.parameters, "changes", None)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file with its grid expanded; the seeds are 1, 2, ... `seeds`."""

    name: str
    cases: tuple[Case, ...]
    seeds: int


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file.

    Raises:
        JobError: it cannot be read, or says what cannot be run; a line for everything wrong.
    """
    text = read_settings(path, "experiment file")
    return parse_experiment(text, source=str(path), folder=path.parent)


def parse_experiment(text: str, source: str = "experiment", folder: Path = Path()) -> Experiment:
    """Read the text of an experiment file.

    Args:
        text: YAML.
        source: names it in messages.
        folder: what paths in it are relative to.

    Raises:
        JobError: a line for everything that is wrong, with file, line, key and what is allowed.

    >>> experiment = parse_experiment('''
    ... name: accuracy
    ... data: [{synthetic: {users: 1000, epochs: [16, 64]}}]
    ... jobs: [{protocol: future_rand, parameters: {epsilon: [1, 2, 4], changes: 2}}]
    ... seeds: 5
    ... ''')
    >>> len(experiment.cases), experiment.cases[-1].source
    (6, SyntheticChanges(users=1000, epochs=64, changes=2, seed=1))
    """

    def make(values: dict[str, Any]) -> Experiment:
        try:
            file = ExperimentFile.model_validate_json(json.dumps(values))
        except ValidationError as error:
            raise JobError(explain(error, ExperimentFile)) from None
        return _expanded(file, folder)

    return make_from_yaml(text, source, make)


def _expanded(file: ExperimentFile, folder: Path) -> Experiment:
    cases: list[Case] = []
    # Each point of a grid finds again what is wrong with all of them.
    problems: dict[Problem, None] = {}
    for place, data in enumerate(file.data):
        missing = _missing(data, folder)
        if missing is not None:
            problems[Problem(("data", place, "change_log"), missing)] = None
        for number, grid in enumerate(file.jobs):
            for values, indices in _combinations(grid):
                try:
                    cases += _cases(data, grid, values, folder)
                except JobError as error:
                    for problem in error.problems:
                        path = _in_experiment(problem.path, place, number, indices)
                        # What makes the log makes the labels beside it.
                        if missing is None or path[2:] != ("parameters", "domain", "file"):
                            problems[Problem(path, problem.message)] = None
    if problems:
        raise JobError(list(problems))
    return Experiment(file.name, tuple(cases), file.seeds)


def _cases(
    data: Data, grid: JobGrid, parameters: Mapping[str, Any], folder: Path
) -> Iterator[Case]:
    for epochs, sources in _inputs(data, folder):
        shuffle = dict(grid.shuffle)
        if shuffle.get("minimum") == ALL_USERS and isinstance(sources[0], DrawnItems):
            shuffle["minimum"] = sources[0].users
        values = {
            "name": "evaluate",
            "protocol": grid.protocol,
            "parameters": parameters,
            "epochs": epochs,
            **({"shuffle": shuffle} if shuffle else {}),
        }
        # Randomness comes from the seeds: nothing else may differ from run to run.
        job = deploy_job(
            make_job(values, folder), deployed_at=0, deployment=bytes(IDENTIFIER_BYTES)
        )
        label = grid.label if grid.label is not None else grid.protocol
        for source in sources:
            if isinstance(source, SyntheticChanges) and source.changes == 0:
                source = dataclasses.replace(source, changes=_followed(job))
            yield Case(data.name or str(source), source, label, job, data.axes, grid.drawn)


def _inputs(data: Data, folder: Path) -> Iterator[tuple[dict[str, Any], list[Source]]]:
    """The epochs of a job, and the inputs that have them; 0 changes: as many as it follows."""
    if data.change_log is not None and data.epochs is not None:
        path = str(folder / data.change_log)
        yield data.epochs.model_dump(mode="json"), [ChangeLogFile(path, data.most_held)]
    elif data.drawn is not None:
        for source in data.drawn.sources():
            yield {"count": 1}, [source]
    elif data.synthetic is not None:
        synthetic = data.synthetic
        for count in synthetic.epochs:
            yield (
                {"count": count},
                [
                    SyntheticChanges(users, count, changes, synthetic.seed)
                    for users, changes in product(synthetic.users, synthetic.changes or (0,))
                ],
            )


def _followed(job: DeployedJob) -> int:
    changes = getattr(job.parameters, "changes", None)
    if changes is None:
        raise JobError(
            [
                Problem(
                    ("data", "synthetic"),
                    f"changes is required: {job.protocol} has no parameter `changes` to take "
                    "it from",
                )
            ]
        )
    return int(changes)


def _missing(data: Data, folder: Path) -> str | None:
    """What there is to say of a change log that is not there."""
    path = folder / (data.change_log or "")
    if data.change_log is None or path.is_file():
        return None
    hint = (
        f": make it by {data.prepare} {path} (see --help of that command for where to get what it "
        "reads)"
        if data.prepare
        else ""
    )
    return f"{path} is not there{hint}"


def _combinations(grid: JobGrid) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """The points of a grid, and where in its list each value of a point stands."""
    lists = _list_parameters(grid.protocol)
    axes: dict[str, list[Any]] = {}
    for key, value in grid.parameters.items():
        is_grid = isinstance(value, list) and (
            key not in lists or all(isinstance(one, list) for one in value)
        )
        axes[key] = value if is_grid else [value]
    for point in product(*(enumerate(values) for values in axes.values())):
        yield (
            {key: value for key, (_, value) in zip(axes, point, strict=True)},
            {key: at for key, (at, _) in zip(axes, point, strict=True) if len(axes[key]) > 1},
        )


@cache
def _list_parameters(protocol: str) -> frozenset[str]:
    """The parameters of a protocol that are lists themselves."""
    if protocol not in PROTOCOLS:
        return frozenset()
    hints = get_type_hints(PROTOCOLS[protocol].parameters)
    return frozenset(
        key
        for key, hint in hints.items()
        if any(get_origin(kind) in (tuple, list) for kind in (hint, *get_args(hint)))
    )


def _in_experiment(path: KeyPath, place: int, number: int, indices: Mapping[str, int]) -> KeyPath:
    """Where in an experiment file something stands that is wrong with one of its jobs."""
    if path[:1] == ("epochs",):
        return ("data", place, *path)
    if path[:1] == ("data",):
        return ("data", place, *path[1:])
    if path[:1] == ("parameters",) and len(path) > 1 and path[1] in indices:
        return ("jobs", number, *path[:2], indices[str(path[1])], *path[2:])
    return ("jobs", number, *path)
