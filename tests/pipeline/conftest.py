"""What most tests of commands begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.small_run import job_text


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """An empty one, which commands find instead of Kafka."""
    return use_memory_cluster(monkeypatch)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Of a small job."""
    path = tmp_path / "small.yaml"
    path.write_text(job_text())
    return path
