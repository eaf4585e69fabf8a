"""Test set for a learning job: a CSV file of labeled examples, named in the job file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.pipeline.jobs.job_problems import JobError, Problem, read_settings, shown
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.values.examples import ExampleDomain
from dpstream.randomizers.labeled_examples import packed_examples

_PATH = ("parameters", "test_set")


def with_test_set(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a job file's values, with the packed examples as ``parameters.test_set``.

    The first line names the columns: ``class`` and the features, in the order of the input; a
    column ``user`` is ignored. File names are relative to `folder`.
    """
    protocol, parameters = PROTOCOLS.get(str(values.get("protocol"))), values.get("parameters")
    if protocol is None or protocol.learning is None or not isinstance(parameters, Mapping):
        return values
    given = parameters.get("test_set")
    if given is None or isinstance(given, str):
        return values
    if not isinstance(given, Mapping) or list(given) != ["file"]:
        raise JobError([Problem(_PATH, f"{shown(given)} is not allowed; expected {{file: NAME}}")])
    name, features, classes = given["file"], parameters.get("features"), parameters.get("classes")
    if not isinstance(name, str) or not isinstance(features, int) or not isinstance(classes, int):
        return values  # Validation reports these keys.
    packed = _read(folder / name, ExampleDomain(features, classes))
    return {**values, "parameters": {**parameters, "test_set": packed}}


def _read(path: Path, domain: ExampleDomain) -> str:
    try:
        text = read_settings(path, "test set")
    except JobError as error:
        (problem,) = error.problems
        raise _problem(f"{problem.place}: {problem.message}") from None
    lines = csv.reader(text.removeprefix("\ufeff").splitlines())
    names = [name.strip().casefold() for name in next(lines, [])]
    if names.count("class") != 1 or len(set(names) - {"class", "user"}) != domain.features:
        raise _problem(
            f"{path}:1: expected one column class and {domain.features:,} distinct feature columns"
        )
    class_at = names.index("class")
    features_at = [at for at, each in enumerate(names) if each not in ("class", "user")]
    rows = []
    for line in lines:
        if len(line) != len(names):
            raise _problem(
                f"{path}:{lines.line_num}: got {len(line)} fields; expected {len(names)}"
            )
        row, wrong = domain.example(line[class_at].strip(), [line[at] for at in features_at])
        if wrong is not None:
            raise _problem(f"{path}:{lines.line_num}: {wrong}")
        rows.append(row)
    return packed_examples(np.array(rows, np.int16).reshape(-1, domain.columns))


def _problem(message: str) -> JobError:
    return JobError([Problem((*_PATH, "file"), message)])
