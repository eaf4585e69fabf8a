"""Test JSON derived from dataclasses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest

from dpstream.pipeline.json_values import json_fields, json_text


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    count: np.int64
    path: Path


@dataclass(frozen=True, slots=True)
class Outer:
    inner: tuple[Inner, ...]
    by_name: Mapping[str, Inner]
    color: Color
    key: bytes
    at: datetime
    bound: float
    rejection: Exception | None

    JSON_PROPERTIES: ClassVar = ("twice",)

    @property
    def twice(self) -> float:
        return 2 * self.bound


class Own:
    def to_json(self) -> dict[str, Any]:
        return {"numbers": np.array([1.5, 2.5])}


def test_json_text_includes_fields_of_nested_dataclasses() -> None:
    inner = Inner(np.int64(3), Path("a/b"))
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    by_name = MappingProxyType({"x": inner})
    outer = Outer((inner,), by_name, Color.RED, b"\x0a\xff", at, 1.0, ValueError("why"))
    expected = {"count": 3, "path": "a/b"}
    assert json.loads(json_text([outer, Own()])) == [
        {
            "inner": [expected],
            "by_name": {"x": expected},
            "color": "red",
            "key": "0aff",
            "at": "2024-02-29T12:00:00+00:00",
            "bound": 1.0,
            "rejection": "why",
            "twice": 2.0,
        },
        {"numbers": [1.5, 2.5]},
    ]


@dataclass(frozen=True, slots=True)
class Bound:
    epsilon: float | None


def test_infinite_field_is_written_as_text_and_nan_is_rejected() -> None:
    assert json_fields(Bound(math.inf)) == {"epsilon": "infinite"}
    assert json_text(Bound(None)) == '{"epsilon": null}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text(Bound(math.nan))
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"epsilon": math.inf})


@dataclass(frozen=True, slots=True)
class Keyed:
    name: str
    secret: bytes = field(repr=False)


def test_fields_excluded_from_repr_are_omitted_from_json() -> None:
    assert json_text(Keyed("a", b"1")) == '{"name": "a"}'


def test_values_of_unknown_types_are_not_written_as_json() -> None:
    with pytest.raises(TypeError, match="set"):
        json_text({1, 2})
