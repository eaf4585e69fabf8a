"""Fixtures of whole runs in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support import cells


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def cells_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol `cells`, for as long as a test lasts."""
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a window holds waits in files, and is read a page of one row at a time."""
    monkeypatch.setattr("dpstream.pipeline.stages.multisets._MEMORY_LIMIT", 1)
    monkeypatch.setattr("dpstream.pipeline.stages.sorted_runs.BLOCK_BYTES", 200)
    monkeypatch.setattr("dpstream.pipeline.stages.sorted_runs.PAGE_BYTES", 1)


@pytest.fixture
def scratch_files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All scratch files that are opened, also those that nobody else remembers."""
    opened, open_one = list[Any](), tempfile.TemporaryFile

    def note(*arguments: Any, **named: Any) -> Any:
        opened.append(open_one(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", note)
    return opened
