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

What else estimates are compared with is said of an experiment (``beside: {paper: Table 4, of
other data}``) and of its jobs: ``beside: {paper: {all items: [3.1, 2.7]}}``, a number for each
combination of the parameters.

Every parameter of a job, and users, epochs and changes of data that are made, may be a list: all
that its values combine to is tried. A parameter that is itself a list is one value, a list of lists
is a grid of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob, deploy_job
from dpstream.pipeline.jobs.input_forms import AS_IT_IS
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import (
    JobError,
    Problem,
    explain,
    make_from_yaml,
    read_settings,
)
from dpstream.pipeline.jobs.marked_yaml import Path as KeyPath
from dpstream.pipeline.protocols.registry import PROTOCOLS
from experiments.evaluation.columns import COLUMNS
from experiments.evaluation.counted_answers import ANSWERED
from experiments.evaluation.data import ChangeLogFile, Source, SyntheticChanges
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.sections import ALL_USERS, Data, ExperimentFile, JobGrid


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
        beside: other root mean squared errors to compare with, by what they are called, and by
            the name of the estimate.
    """

    data: str
    source: Source
    label: str
    job: DeployedJob
    axes: tuple[str, ...] = ()
    drawn: bool = True
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

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
    """An experiment file with its grid expanded; the seeds are 1, 2, ... `seeds`.

    Attributes:
        name: of the experiment.
        cases: all points of the grid.
        seeds: how many.
        beside: what `Case.beside` compares with, a sentence for each name.
    """

    name: str
    cases: tuple[Case, ...]
    seeds: int
    beside: Mapping[str, str] = field(default_factory=dict)


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
            combinations = list(_combinations(grid))
            problems |= dict.fromkeys(_unlike(grid, number, len(combinations)))
            for at, (values, indices) in enumerate(combinations):
                try:
                    cases += _cases(data, grid, values, _beside(grid, at), folder)
                except JobError as error:
                    for problem in error.problems:
                        path = _in_experiment(problem.path, place, number, indices)
                        # What makes the log makes the labels beside it.
                        if missing is None or path[2:] != ("parameters", "domain", "file"):
                            problems[Problem(path, problem.message)] = None
    if problems:
        raise JobError(list(problems))
    return Experiment(file.name, tuple(cases), file.seeds, file.beside)


def _unlike(grid: JobGrid, number: int, combinations: int) -> Iterator[Problem]:
    """What there is to say of numbers to compare with that belong to nothing."""
    known = (*ANSWERED, *COLUMNS)
    for name, estimates in grid.beside.items():
        for estimate, numbers in estimates.items():
            if estimate not in known:
                yield Problem(
                    ("jobs", number, "beside", name, estimate),
                    f"no kind of estimate: give one of {', '.join(known)}",
                )
            elif len(numbers) != combinations:
                yield Problem(
                    ("jobs", number, "beside", name, estimate),
                    f"{len(numbers)} numbers for {combinations} combinations of parameters: give "
                    "one for each of them, or none",
                )


def _beside(grid: JobGrid, at: int) -> Mapping[str, Mapping[str, float]]:
    """What the point of a grid at this place is compared with."""
    return {
        name: {
            estimate: found
            for estimate, numbers in estimates.items()
            if at < len(numbers) and (found := numbers[at]) != "none"
        }
        for name, estimates in grid.beside.items()
    }


def _cases(
    data: Data,
    grid: JobGrid,
    parameters: Mapping[str, Any],
    beside: Mapping[str, Mapping[str, float]],
    folder: Path,
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
            yield Case(data.name or str(source), source, label, job, data.axes, grid.drawn, beside)


def _inputs(data: Data, folder: Path) -> Iterator[tuple[dict[str, Any], list[Source]]]:
    """The epochs of a job, and the inputs that have them; 0 changes: as many as it follows."""
    if data.change_log is not None and data.epochs is not None:
        path = str(folder / data.change_log)
        file = ChangeLogFile(path, data.most_held, data.input or AS_IT_IS)
        yield data.epochs.model_dump(mode="json"), [file]
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
