"""Fixtures of windows in spill files and in several records."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest

from dpstream.topics.messages import Messages, split_messages


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


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write very few messages to each record."""

    def split_small(words: Messages, payload_bytes: int = 0) -> list[Messages]:
        return split_messages(words, max(8, 2 * words.values.itemsize * words.width))

    for module in (
        *("devices.epoch_records", "devices.sealed_records"),
        *("stages.multisets", "stages.ciphertexts_of_windows"),
    ):
        monkeypatch.setattr(f"dpstream.pipeline.{module}.split_messages", split_small)
