"""JSON text of results, derived from their dataclasses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any

import numpy as np


def json_text(value: object, **form: Any) -> str:
    """Return the JSON text of a value, nested to any depth; `form` is passed to `json.dumps`.

    Raises `ValueError` if a number outside a dataclass is not finite.
    """
    return json.dumps(value, default=json_value, allow_nan=False, **form)


def json_value(value: object) -> object:
    r"""Convert a value to JSON types one level deep; `json_text` recurses.

    Classes with a `to_json` method define their own format. Other dataclasses become objects with
    their fields and the properties listed in `JSON_PROPERTIES`.

    >>> json_text({"from": PurePath("a"), "key": b"\n", "count": np.int64(3)})
    '{"from": "a", "key": "0a", "count": 3}'
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return json_fields(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath | Exception):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON representation")


def json_fields(result: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; infinite numbers become "infinite"."""
    # Fields excluded from `repr` are secret.
    names = [field.name for field in fields(result) if field.repr]
    found = {name: getattr(result, name) for name in names}
    found |= {name: getattr(result, name) for name in getattr(result, "JSON_PROPERTIES", ())}
    return {name: "infinite" if each == math.inf else each for name, each in found.items()}
