"""Test recordings and replays of windows from parallel shufflers, and of shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.operations.status.facts import JobStatus
from dpstream.pipeline.operations.status.health_rules import find_issues
from dpstream.pipeline.recording.recording_tables import published_estimate
from dpstream.pipeline.recording.recordings import Recording
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.pipeline.stages import test_instances as instances
from tests.pipeline.stages import test_sealed_instances as sealed_instances
from tests.pipeline.stages import test_shares as shares
from tests.support.replays import LiveRun, replayed
from tests.support.sealed_cells import CELLS, EPOCHS, run

pytestmark = pytest.mark.usefixtures("cells_protocol")


def test_recording_and_replay_combine_parallel_shufflers(folder: Path) -> None:
    world = instances.new_world(instances.deployed(3), folder)
    world.run(range(1, instances.EPOCHS + 1), rounds=2)
    live = LiveRun(world.job, world.log)
    for source in (live.source, live.record(folder / "recording")):
        assert all(source.has_window(epoch) for epoch in (1, 2))
        assert source.window(1).values[:, 0].tolist() == list(range(instances.CELLS))
        job, log, results = replayed(source)
        assert job.partial_window_count == 1
        assert results.integers == live.results.integers
        assert len(log.values(Role.SHUFFLED, 1)) == 1


def test_recording_and_replay_count_copied_ciphertexts_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = sealed_instances.copied(folder, monkeypatch)
    live = LiveRun(world.job, world.log)
    for source in (live.source, live.record(folder / "recording")):
        assert source.window(1).messages == CELLS
        assert replayed(source)[2].integers == live.results.integers


def test_epoch_with_mismatched_shares_is_recorded_and_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = shares.deployed()
    shares.lying(monkeypatch, job, shares.broken(0, 1))
    world = run(shares.new_world(job, folder))
    published = world.published()
    assert published[1].window_status is WindowStatus.CORRUPT
    status = JobStatus(job.name, "", 0, EPOCHS, published[1], (), {})
    (issue,) = find_issues(job, status)
    assert issue.startswith(
        f"Epoch 1 (2023-01-01 00:00) is corrupt: {published[1].reason}. If shares cannot be "
    )
    LiveRun(job, world.log).record(folder / "recording")
    recorded = Recording.open(folder / "recording").estimates()
    rows = [published_estimate(row, job.deployment) for row in recorded]
    assert rows == [published[1], published[2]]
