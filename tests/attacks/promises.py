"""Guarantees of the implementation, each with a check that tries to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

Promises: TypeAlias = Mapping[str, Callable[[], str]]
"""Checks by guarantee. Each returns why its guarantee is broken, or an empty text."""


def broken(promises: Promises) -> Iterator[str]:
    for promise, check in promises.items():
        reason = check()
        if reason:
            yield f"{promise}: {reason}"
