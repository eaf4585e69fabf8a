"""Domains in job files: labels in a list or a file, numbers, grids.

This module checks the format and converts labels to text. The contents are checked when the
protocol's parameters are constructed: labels by `parameter_checks` and `hadamard_rows`, and all
other contents by the types in `dpstream.randomizers.item_domains`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args, get_type_hints
from unicodedata import normalize

from dpstream.pipeline.jobs.job_problems import JobError, Problem, read_settings, shown
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.item_domains import (
    Bits,
    ItemDomain,
    Numbers,
    Points,
    StreamDomain,
    StringLength,
    Strings,
)

_PATH = ("parameters", "domain")
_FORMS = "a list of labels, or {file: NAME} for a file with one label per line"


class _Kind(NamedTuple):
    keys: tuple[str, ...]
    form: str
    type: type
    make: Callable[[Mapping[str, Any]], object]


_KINDS: Final = (
    _Kind(("bits",), "{bits: b}", Bits, lambda form: Bits(**form)),
    _Kind(
        ("strings",),
        "{strings: {bytes: b}}",
        Strings,
        lambda form: Strings(StringLength(**form["strings"])),
    ),
    _Kind(
        ("low", "high", "buckets"),
        "{low: x, high: y, buckets: n}",
        Numbers,
        lambda form: Numbers(**form),
    ),
    _Kind(("grid",), "{grid: [n, m]}", Points, lambda form: Points(tuple(form["grid"]))),
)

_ALLOWED: Final = (
    tuple[str, ...],
    tuple[str, ...] | None,
    ItemDomain,
    ItemDomain | None,
    StreamDomain | None,
)
"""Types of the parameter ``domain`` for which job files list labels or use one of `_KINDS`."""


def with_attributes(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    attributes = values.get("attributes")
    if not isinstance(attributes, Mapping):
        return values
    read = {
        name: {**keys, "values": _values_of(keys["values"], ("attributes", name, "values"), folder)}
        if isinstance(keys, Mapping) and isinstance(keys.get("values"), list | Mapping)
        else keys
        for name, keys in attributes.items()
    }
    return {**values, "attributes": read}


def _values_of(listed: Any, path: tuple[str, ...], folder: Path) -> list[str]:
    if isinstance(listed, list):
        return [_label(label, path, index) for index, label in enumerate(listed)]
    if list(listed) == ["file"]:
        return _from_file(listed["file"], folder, path)
    raise JobError([Problem(path, f"{shown(listed)} is not allowed; expected {_FORMS}")])


def with_domain(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a job file's values, with the labels of the domain read and converted to text.

    Numbers become text as parsed by YAML: 1 is the label ``1``. In a file, empty lines and spaces
    around a label are ignored. File names are relative to `folder`.
    """
    protocol, parameters = PROTOCOLS.get(str(values.get("protocol"))), values.get("parameters")
    if protocol is None or not isinstance(parameters, Mapping) or "domain" not in parameters:
        return values
    allowed, domain = get_type_hints(protocol.parameters).get("domain"), parameters["domain"]
    if allowed not in _ALLOWED:
        return values
    if domain is None and NoneType in get_args(allowed):
        return values
    labels: Any
    kinds = [kind for kind in _KINDS if kind.type in get_args(allowed)]
    if kinds and isinstance(domain, Mapping) and list(domain) != ["file"]:
        labels = _of_form(domain, kinds)
    elif isinstance(domain, list):
        labels = [_label(label, _PATH, index) for index, label in enumerate(domain)]
    elif isinstance(domain, Mapping) and list(domain) == ["file"]:
        labels = _from_file(domain["file"], folder, _PATH)
    else:
        raise JobError([Problem(_PATH, f"{shown(domain)} is not allowed; expected {_FORMS}")])
    return {**values, "parameters": {**parameters, "domain": labels}}


def _label(label: object, path: tuple[str, ...], *place: str | int) -> str:
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, str | int | float):
        return _composed(str(label))
    raise JobError([Problem((*path, *place), f"{shown(label)} is not a label; expected text")])


def _of_form(domain: Mapping[str, Any], kinds: Sequence[_Kind]) -> Mapping[str, Any]:
    """Validate a domain that is not a list of labels, and return it with its values as text."""
    *others, last = ["a list of labels", "{file: NAME}", *(kind.form for kind in kinds)]
    allowed = f"{', '.join(others)} or {last}"
    rejected = JobError([Problem(_PATH, f"{shown(domain)} is not allowed; expected {allowed}")])
    kind = next((kind for kind in kinds if set(domain) == set(kind.keys)), None)
    if kind is None:
        raise rejected
    try:
        kind.make(domain)
    except ValueError as error:
        raise JobError([Problem(_PATH, str(error))]) from None
    except TypeError:
        raise rejected from None
    return domain


def _from_file(name: object, folder: Path, path: tuple[str, ...]) -> list[str]:
    if not isinstance(name, str):
        raise JobError([Problem((*path, "file"), f"{shown(name)} is not the name of a file")])
    try:
        text = read_settings(folder / name, "file of labels")
    except JobError as error:
        (problem,) = error.problems
        message = f"{problem.place}: {problem.message}"
        raise JobError([Problem((*path, "file"), message)]) from None
    lines = text.removeprefix("\ufeff").split("\n")
    return [_composed(label) for line in lines if (label := line.strip())]


def _composed(label: str) -> str:
    """Normalize a label to NFC, so that labels that look the same are equal."""
    return normalize("NFC", label)
