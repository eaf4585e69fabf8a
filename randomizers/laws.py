"""Laws as JSON: the one way in which the constants of a job are written and read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from types import NoneType, UnionType
from typing import Any, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

Reader: TypeAlias = Callable[[Any], Any]


class Constants:
    """A frozen dataclass of constants that is JSON by its fields.

    What a field holds follows from its type: numbers, words, other constants, or tuples of them. A
    field whose type does not tell names what reads it: ``field(metadata={"read": ...})``.

    >>> from dpstream.randomizers.cell_noise_law import CellNoiseLaw
    >>> CellNoiseLaw.from_json(CellNoiseLaw("poisson", 43.0, 1000).to_json()).minimum
    1000
    """

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {name: write(getattr(self, name)) for name, write in _writers(type(self)).items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            ValueError: it is something else.
        """
        readers = _readers(cls)
        try:
            if unknown := sorted(body.keys() - readers.keys()):
                raise ValueError(f"no constants are called {', '.join(unknown)}")
            return cls(**{name: readers[name](value) for name, value in body.items()})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ValueError) else repr(error)
            raise ValueError(f"not a law of {_name(cls)}: {why}") from error


def hexadecimal() -> Any:
    """A field for a number that devices calculate with: written so that it is read bit by bit."""
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
    """As protocols are named, from the name of a class."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", law.__name__.removesuffix("Law")).lower()


def _written(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return [_written(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: Any, value: Any) -> Any:
    """The value of a field of this type; that whole numbers are, each class checks itself."""
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if get_origin(kind) in (Union, UnionType):
        (held,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else _read(held, value)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], each) for each in value)
    if kind is float:
        if type(value) not in (int, float):
            raise ValueError(f"{value!r} is no number")
        return float(value)
    return value
