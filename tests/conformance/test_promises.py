"""Guarantees and constants for given parameters never change."""

from __future__ import annotations

import json

import pytest

from tests.conformance.promises import FILE, parts, promises_of

NEAR = 1e-7
"""Tolerance: processors can differ in the last digits, and results of searches vary slightly."""

PARTS = parts()


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[] if part.endswith("-0") else [pytest.mark.verify])
        for part in PARTS
    ],
)
def test_guarantees_and_constants_equal_the_stored_values(part: str) -> None:
    known = json.loads(FILE.read_text())[part]
    assert known.keys() == PARTS[part].keys()
    for title, text in PARTS[part].items():
        then, now = known[title], promises_of(text)
        assert now.keys() == then.keys(), title
        for name, value in then.items():
            expected = value if isinstance(value, str) else pytest.approx(value, rel=NEAR, abs=0)
            assert now[name] == expected, f"{title}: {name}"
