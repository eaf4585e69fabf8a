"""Fixtures of most tests of commands and of whole in-memory runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.small_run import job_text
from tests.support.world import memory_folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    return use_memory_cluster(monkeypatch)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(job_text())
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a missing state folder, and unset the cluster address."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DPSTREAM_HOME", str(folder))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    return folder


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Run commands on a terminal wide enough to keep sentences on one line."""
    monkeypatch.setenv("COLUMNS", "200")
    return Commands(capsys)


@pytest.fixture(name="tmp_path")
def folder_in_memory() -> Iterator[Path]:
    """Use an in-memory folder if available: producers and recordings wait for their disk."""
    with memory_folder() as path:
        yield path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def cells_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
