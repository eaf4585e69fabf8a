"""What is wrong with a job, in words: where it stands, which key, and what is allowed there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.marked_yaml import Path, dotted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a job; `place` is ``file:line`` where it was read from a file."""

    path: Path
    message: str
    place: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, dotted(self.path), self.message) if part)


class JobError(ValueError):
    """A job that cannot be: one line for each thing wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def explain(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """The problems pydantic found in values for `model`, in the order of its fields.

    What is allowed is taken from the field's description, where it has one.
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
            problems.append(Problem(path, f"is required{_allowed(model, path, ': give ')}"))
    return problems


def shown(value: object) -> str:
    """A value as a job file would have it, cut to a length that fits a message."""
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
        # A check of a whole section; where its message begins with a key, it is about that one.
        message = str(error["ctx"]["error"])
        key, _, rest = message.partition(" ")
        return Problem((*path, key), rest) if key in keys else Problem(path, message)
    allowed = _allowed(model, path) or error["msg"].removeprefix("Input should be ")
    return Problem(path, f"{shown(error['input'])} is not allowed: give {allowed}")


def _allowed(model: type[BaseModel], path: Path, prefix: str = "") -> str:
    """What may stand at a path, or nothing where only pydantic knows."""
    if keys := _keys(model, path):
        return f"{prefix}keys out of {', '.join(keys)}"
    description = _keys(model, path[:-1]).get(str(path[-1])) if path else None
    return f"{prefix}{description}" if description else ""


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, str | None]:
    """The keys of the section at a path with their descriptions; none if it is not a section."""
    section: Any = model
    for part in path:
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return {}
        field = section.model_fields.get(str(part))
        section = field.annotation if field is not None else None
    if isinstance(section, type) and issubclass(section, BaseModel):
        return {name: field.description for name, field in section.model_fields.items()}
    if dataclasses.is_dataclass(section):
        return {field.name: None for field in dataclasses.fields(section)}
    return {}
