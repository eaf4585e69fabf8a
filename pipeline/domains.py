"""The labels of a domain, as a job file gives them: a list of them, or a file with one a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.job_problems import JobError, Problem, read_settings, shown
from pipeline.protocols import PROTOCOLS

_PATH = ("parameters", "domain")
_FORMS = "a list of labels, or {file: NAME} for a file with one label a line"


def with_labels(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The values of a job file with the labels themselves, as text, at ``parameters.domain``.

    Numbers become text as YAML has read them: 1 is the label ``1``. In a file, empty lines and
    spaces around a label do not count.

    Args:
        values: of a job file; those whose protocol has no domain of labels stay as they are.
        folder: where names of files begin.

    Raises:
        JobError: a domain is neither of the two, or its file cannot be read.
    """
    protocol, parameters = PROTOCOLS.get(str(values.get("protocol"))), values.get("parameters")
    if protocol is None or not isinstance(parameters, Mapping) or "domain" not in parameters:
        return values
    if get_type_hints(protocol.parameters).get("domain") != tuple[str, ...]:
        return values
    domain = parameters["domain"]
    if isinstance(domain, list):
        labels = [_label(label, index) for index, label in enumerate(domain)]
    elif isinstance(domain, Mapping) and list(domain) == ["file"]:
        labels = _from_file(domain["file"], folder)
    else:
        raise JobError([Problem(_PATH, f"{shown(domain)} is not allowed: give {_FORMS}")])
    return {**values, "parameters": {**parameters, "domain": labels}}


def _label(label: object, index: int) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, str | int | float):
        return str(label)
    raise JobError([Problem((*_PATH, index), f"{shown(label)} is not a label: give text")])


def _from_file(name: object, folder: Path) -> list[str]:
    if not isinstance(name, str):
        raise JobError([Problem((*_PATH, "file"), f"{shown(name)} is not the name of a file")])
    try:
        text = read_settings(folder / name, "file of labels")
    except JobError as error:
        (problem,) = error.problems
        message = f"{problem.place}: {problem.message}"
        raise JobError([Problem((*_PATH, "file"), message)]) from None
    lines = text.removeprefix("\ufeff").split("\n")
    return [label for line in lines if (label := line.strip())]
