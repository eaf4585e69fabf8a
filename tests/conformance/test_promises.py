"""What a job of some parameters promises is what one of the same parameters promised before."""

from __future__ import annotations

import json

import pytest

from tests.conformance.promises import FILE, PROMISED, jobs_of, promises_of

NEAR = 1e-7
"""Processors may differ in the last digits, and a search ends near where it ended before."""


@pytest.mark.parametrize("protocol", PROMISED)
def test_promises_and_what_is_drawn_from_stay(protocol: str) -> None:
    known = json.loads(FILE.read_text())[protocol]
    jobs = jobs_of(protocol)
    assert known.keys() == jobs.keys()
    for told, text in jobs.items():
        then, now = known[told], promises_of(text)
        assert now.keys() == then.keys(), told
        for name, value in then.items():
            expected = value if isinstance(value, str) else pytest.approx(value, rel=NEAR, abs=0)
            assert now[name] == expected, f"{told}: {name}"
