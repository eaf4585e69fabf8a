"""Fixtures of windows buffered in spill files."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffer windows in files only, and read them in pages of one row."""
    monkeypatch.setattr("dpstream.pipeline.stages.multisets._MEMORY_LIMIT", 1)
    monkeypatch.setattr("dpstream.pipeline.stages.sorted_runs.BLOCK_BYTES", 200)
    monkeypatch.setattr("dpstream.pipeline.stages.sorted_runs.PAGE_BYTES", 1)


@pytest.fixture
def spill_files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record all spill files opened, also those without another reference."""
    opened, open_one = list[Any](), tempfile.TemporaryFile

    def note(*arguments: Any, **named: Any) -> Any:
        opened.append(open_one(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", note)
    return opened
