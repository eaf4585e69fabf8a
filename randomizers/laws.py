"""JSON encoding of mechanisms: the only way to write and read a job's constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from types import NoneType, UnionType
from typing import Any, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

Reader: TypeAlias = Callable[[Any], Any]


class Constants:
    """Base class for frozen dataclasses of constants, stored as JSON field by field.

    The type of a field determines how it is read: numbers, strings, other constants, or tuples of
    them. A field with an ambiguous type has its own reader: ``field(metadata={"read": ...})``.

    >>> from dpstream.randomizers.cell_noise_law import CellNoiseLaw
    >>> CellNoiseLaw.from_json(CellNoiseLaw("poisson", 43.0, 1000).to_json()).minimum
    1000
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return {name: write(getattr(self, name)) for name, write in _writers(type(self)).items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        readers = _readers(cls)
        try:
            if unknown := sorted(body.keys() - readers.keys()):
                raise ValueError(f"unknown constants {', '.join(unknown)}")
            return cls(**{name: readers[name](value) for name, value in body.items()})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise ValueError(f"invalid constants for {_name(cls)}: {why}") from error


def hexadecimal() -> Any:
    """Return a field for a float that devices compute with, stored bit by bit in hexadecimal."""
    return field(metadata={"read": float.fromhex, "write": float.hex})


def _readers(law: type[Any]) -> dict[str, Reader]:
    types = get_type_hints(law)
    return {
        each.name: each.metadata.get("read", partial(_read, types[each.name]))
        for each in fields(law)
    }


def _writers(law: type[Any]) -> dict[str, Callable[[Any], Any]]:
    return {each.name: each.metadata.get("write", _written) for each in fields(law)}


def _name(law: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", law.__name__.removesuffix("Law")).lower()


def _written(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return [_written(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: Any, value: Any) -> Any:
    """Convert the JSON value of a field of type `kind`; classes check their integers themselves."""
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if get_origin(kind) in (Union, UnionType):
        (held,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else _read(held, value)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], each) for each in value)
    if kind is float:
        if type(value) not in (int, float):
            raise ValueError(f"got {value!r}; expected a number")
        return float(value)
    return value
