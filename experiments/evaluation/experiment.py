"""Experiment files: the jobs to try, their data, and the number of seeds.

An experiment file is YAML::

    name: accuracy
    data:
      - {change_log: logins.csv.gz, epochs: {count: 170}}
      - synthetic: {users: [10000, 100000], epochs: 256}
    jobs:
      - {protocol: future_rand, parameters: {epsilon: [1, 2, 4], max_changes: 4}}
    seeds: 20

Instead of a change log or synthetic changes, data can be items drawn from the domain of each job:
``zipf: {users: 100000}`` or ``selection: {users: 1000}``. For drawn items, ``users`` in ``shuffle:
{minimum: users}`` stands for the number of users.

Results can be compared with published ones. The experiment's ``references`` describe each source,
and those of a job list its published numbers, one for each combination of the parameters::

    references: {paper: Table 4, of other data}
    jobs:
      - references: {paper: {all items: [3.1, 2.7]}}

Parameters of a job, and users, epochs and changes of generated data, can be lists: all combinations
are tried. If the value of a parameter is itself a list, a list of such lists is a grid of values.
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
from dpstream.pipeline.jobs.input_formats import AS_IT_IS
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
    """One point of the grid: a job on an input, to run with every seed.

    Attributes:
        axes: Names of the coordinates of values, as far as known.
        drawn: True if pictures show estimates of sets of items.
        references: RMSEs by the name of the reference, then by the name of the estimate.
    """

    data: str
    source: Source
    label: str
    job: DeployedJob
    axes: tuple[str, ...] = ()
    drawn: bool = True
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def of_sets(self) -> bool:
        """True if users have a set of items at every epoch, and epochs are independent."""
        return self.job.protocol_entry.per_epoch

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = self.job.to_json()["parameters"]
        return parameters

    @property
    def epsilon(self) -> float | None:
        """Requested epsilon, or None if the protocol has no such parameter."""
        return getattr(self.job.parameters, "epsilon", None)

    @property
    def max_changes(self) -> int | None:
        return getattr(self.job.parameters, "max_changes", None)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file with its grid expanded; the seeds are 1, 2, ... `seeds`.

    `references` maps the name of each reference of the cases to a sentence that explains it.
    """

    name: str
    cases: tuple[Case, ...]
    seeds: int
    references: Mapping[str, str] = field(default_factory=dict)


def load_experiment(path: Path) -> Experiment:
    """Read an experiment file, or raise `JobError` with a line for every problem."""
    text = read_settings(path, "experiment file")
    return parse_experiment(text, source=str(path), folder=path.parent)


def parse_experiment(text: str, source: str = "experiment", folder: Path = Path()) -> Experiment:
    """Read the text (YAML) of an experiment file; its paths are relative to `folder`.

    Raises `JobError` with a line for every problem: file, line, key and allowed values.

    >>> experiment = parse_experiment('''
    ... name: accuracy
    ... data: [{synthetic: {users: 1000, epochs: [16, 64]}}]
    ... jobs: [{protocol: future_rand, parameters: {epsilon: [1, 2, 4], max_changes: 2}}]
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
    # A dict, because every point of a grid repeats the problems that all points share.
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
                        # The command that makes the log also makes the labels.
                        if missing is None or path[2:] != ("parameters", "domain", "file"):
                            problems[Problem(path, problem.message)] = None
    if problems:
        raise JobError(list(problems))
    return Experiment(file.name, tuple(cases), file.seeds, file.references)


def _unlike(grid: JobGrid, number: int, combinations: int) -> Iterator[Problem]:
    """Yield problems with references: unknown estimates, or too few or too many numbers."""
    known = (*ANSWERED, *COLUMNS)
    for name, estimates in grid.references.items():
        for estimate, numbers in estimates.items():
            if estimate not in known:
                yield Problem(
                    ("jobs", number, "references", name, estimate),
                    f"unknown kind of estimate; expected one of {', '.join(known)}",
                )
            elif len(numbers) != combinations:
                yield Problem(
                    ("jobs", number, "references", name, estimate),
                    f"got {len(numbers)} numbers for {combinations} combinations of "
                    "parameters; expected one number for each, or an empty list",
                )


def _beside(grid: JobGrid, at: int) -> Mapping[str, Mapping[str, float]]:
    return {
        name: {
            estimate: found
            for estimate, numbers in estimates.items()
            if at < len(numbers) and (found := numbers[at]) != "none"
        }
        for name, estimates in grid.references.items()
    }


def _cases(
    data: Data,
    grid: JobGrid,
    parameters: Mapping[str, Any],
    references: Mapping[str, Mapping[str, float]],
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
        # Runs differ only in their seeds, from which all randomness is derived.
        job = deploy_job(
            make_job(values, folder), deployed_at=0, deployment=bytes(IDENTIFIER_BYTES)
        )
        label = grid.label if grid.label is not None else grid.protocol
        for source in sources:
            if isinstance(source, SyntheticChanges) and source.changes == 0:
                source = dataclasses.replace(source, changes=_followed(job))
            yield Case(
                data.name or str(source), source, label, job, data.axes, grid.drawn, references
            )


def _inputs(data: Data, folder: Path) -> Iterator[tuple[dict[str, Any], list[Source]]]:
    """Yield the epochs of a job and its inputs; 0 changes means the job's `max_changes`."""
    if data.change_log is not None and data.epochs is not None:
        path = str(folder / data.change_log)
        file = ChangeLogFile(path, data.top_items, data.input or AS_IT_IS)
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
    changes = getattr(job.parameters, "max_changes", None)
    if changes is None:
        raise JobError(
            [
                Problem(
                    ("data", "synthetic"),
                    f"'changes' is required, because {job.protocol} has no 'max_changes'",
                )
            ]
        )
    return int(changes)


def _missing(data: Data, folder: Path) -> str | None:
    path = folder / (data.change_log or "")
    if data.change_log is None or path.is_file():
        return None
    hint = (
        f". To make it: {data.prepare} {path} (its --help states the source of the data)"
        if data.prepare
        else ""
    )
    return f"{path} does not exist{hint}"


def _combinations(grid: JobGrid) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
    """Yield each point of a grid, and the index of each varied value in its list."""
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
    if protocol not in PROTOCOLS:
        return frozenset()
    hints = get_type_hints(PROTOCOLS[protocol].parameters)
    return frozenset(
        key
        for key, hint in hints.items()
        if any(get_origin(kind) in (tuple, list) for kind in (hint, *get_args(hint)))
    )


def _in_experiment(path: KeyPath, place: int, number: int, indices: Mapping[str, int]) -> KeyPath:
    """Translate the key path of a problem in a job to a key path in the experiment file."""
    if path[:1] == ("epochs",):
        return ("data", place, *path)
    if path[:1] == ("data",):
        return ("data", place, *path[1:])
    if path[:1] == ("parameters",) and len(path) > 1 and path[1] in indices:
        return ("jobs", number, *path[:2], indices[str(path[1])], *path[2:])
    return ("jobs", number, *path)
