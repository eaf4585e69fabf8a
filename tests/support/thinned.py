"""Thin out cases: `make test` runs some, `make verify` all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def thinned(cases: Sequence[Any], every: int = 3) -> list[Any]:
    """Return the cases; mark all but the first of every `every` as ``verify``.

    >>> [each.marks for each in thinned([(1, 2), (3, 4)], 2)][0]
    ()
    """
    found = []
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = () if number % every == 0 else pytest.mark.verify
        found.append(pytest.param(*values, marks=marks))
    return found
