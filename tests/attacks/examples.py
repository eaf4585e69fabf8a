"""Protocol examples for attacks on the implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpstream.pipeline.conformance.finding import find_cases
from tests.conformance.cases import CASES, Case

EXAMPLES = [
    pytest.param(case, marks=() if case.number == 0 else pytest.mark.verify) for case in CASES
]
"""Examples in ``make test``: the first of each protocol; ``make verify`` runs all examples."""


def case_of(name: str, number: int = 0) -> Case:
    return find_cases(name)[number]


def with_entry(case: Case, **changed: Any) -> Case:
    return replace(case, protocol=replace(case.protocol, **changed))
