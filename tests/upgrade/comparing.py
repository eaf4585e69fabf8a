"""Compares what two versions say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

TOLERANCE = 1e-9
"""Of floating-point numbers, which other libraries and processors round otherwise."""


def same(found: Any, expected: Any) -> bool:
    """Equal but for rounding, and for keys that later versions have added."""
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and same(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return bool(found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE))
    return bool(found == expected)
