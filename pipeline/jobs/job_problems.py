"""Messages about problems in a settings file, with location, key and valid values."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.marked_yaml import Path, YamlError, dotted, read_marked_yaml
from dpstream.pipeline.whole_files import read_whole_text

Made = TypeVar("Made")

_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a job; `place` is ``file:line`` if the job was read from a file."""

    path: Path
    message: str
    place: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, dotted(self.path), self.message) if part)


class JobError(DpstreamError, ValueError):
    exit_code = WRONG_INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def read_settings(path: pathlib.Path, what: str) -> str:
    try:
        return read_whole_text(path)
    except UnicodeDecodeError:
        raise JobError([Problem((), "not a text file in UTF-8", str(path))]) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise JobError([Problem((), f"cannot read the {what}: {reason}", str(path))]) from None


def make_from_yaml(text: str, source: str, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Return `make(values)` for a YAML text's values; problems that it reports get line numbers."""
    try:
        document = read_marked_yaml(text)
    except YamlError as error:
        raise JobError(
            [Problem((), message, f"{source}:{line}") for line, message in error.problems]
        ) from None
    try:
        return make(document.values)
    except JobError as error:
        problems = sorted(error.problems, key=lambda problem: document.line_of(problem.path))
        raise JobError(
            [
                replace(problem, place=f"{source}:{document.line_of(problem.path)}")
                for problem in problems
            ]
        ) from None


def explain(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Convert pydantic's errors for `model` to problems, in the order of its fields.

    Valid values are quoted from the field's description, if it has one.
    """
    found = error.errors(include_url=False)
    unknown = {
        tuple(each["loc"]): get_close_matches(
            str(each["loc"][-1]), _keys(model, each["loc"][:-1]), 1
        )
        for each in found
        if each["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    }
    meant = {(*path[:-1], *guess) for path, guess in unknown.items() if guess}
    problems = []
    for each in found:
        path = tuple(each["loc"])
        if path in unknown:
            problems.append(_unknown_key(path, unknown[path], model))
        elif each["type"] != "missing":
            problems.append(_wrong_value(path, dict(each), model))
        elif path not in meant:
            problems += [
                Problem(key, f"is required{_allowed(model, key, '; expected ')}")
                for key in _required(model, path)
            ]
    return problems


def shown(value: object) -> str:
    """Format a value as in a job file, cut to a length that fits a message."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(path: Path, guess: list[str], model: type[BaseModel]) -> Problem:
    hint = f"did you mean {guess[0]}? " if guess else ""
    return Problem(path, f"unknown key; {hint}allowed: {', '.join(_keys(model, path[:-1]))}")


def _wrong_value(path: Path, error: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    keys = _keys(model, path)
    if error["type"] == "value_error" and keys:
        # From a check of a whole section: a message is about the key that it starts with, quoted or
        # not.
        key, _, rest = (message := str(error["ctx"]["error"])).partition(" ")
        key = key.strip("'")
        return Problem((*path, key), rest) if key in keys else Problem(path, message)
    if (better := _without_commas(error)) is not None:
        return Problem(path, f"{shown(error['input'])} is not allowed: {better}")
    allowed = _allowed(model, path) or error["msg"].removeprefix("Input should be ")
    return Problem(path, f"{shown(error['input'])} is not allowed; expected {allowed}")


def _without_commas(error: Mapping[str, Any]) -> str | None:
    text, kind = error["input"], error["type"]
    if not isinstance(text, str):
        return None
    if kind.startswith("int_") and _THOUSANDS.fullmatch(text):
        return f"write it without commas: {text.replace(',', '')}"
    if kind.startswith("float_") and _DECIMAL_COMMA.fullmatch(text):
        return f"use a decimal point: {text.replace(',', '.')}"
    return None


def _allowed(model: type[BaseModel], path: Path, prefix: str = "") -> str:
    if keys := _keys(model, path):
        return f"{prefix}any of the keys {', '.join(keys)}"
    while path and isinstance(path[-1], int):  # a list's description applies to its items
        path = path[:-1]
    description = _keys(model, path[:-1]).get(str(path[-1])) if path else None
    return f"{prefix}{description}" if description else ""


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, str | None]:
    section = _section(model, path)
    if isinstance(section, type) and issubclass(section, BaseModel):
        return {name: field.description for name, field in section.model_fields.items()}
    if dataclasses.is_dataclass(section):
        return {field.name: None for field in dataclasses.fields(section)}
    return {}


def _section(model: type[BaseModel], path: Sequence[str | int]) -> Any:
    section: Any = model
    for part in path:
        if isinstance(part, int):
            section = _inside(section)
            continue
        if get_origin(section) is dict:
            section = get_args(section)[1]
            continue
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
        field = section.model_fields.get(part)
        section = field.annotation if field is not None else None
        if NoneType in get_args(section):
            section = _inside(section)
    return section


def _required(model: type[BaseModel], path: Path) -> list[Path]:
    section = _section(model, path)
    if not (isinstance(section, type) and issubclass(section, BaseModel)):
        return [path]
    fields = section.model_fields.items()
    return [(*path, name) for name, field in fields if field.is_required()] or [path]


def _inside(annotation: Any) -> Any:
    return next((one for one in get_args(annotation) if one not in (NoneType, ...)), None)
