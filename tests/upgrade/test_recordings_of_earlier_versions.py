"""What earlier versions recorded is read, and gone on with as if it had been recorded today.

``recordings/FORMAT`` holds what `write_recordings` wrote, in the middle of a job.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.recording.estimate_rows import published_estimate
from pipeline.recording.record_verify import verify
from pipeline.recording.recordings import Recording
from pipeline.recording.replay.recording_source import RecordingSource
from tests.support.replays import replayed
from tests.support.world import World
from tests.upgrade.comparing import same
from tests.upgrade.write_golden import middle_of, run_to_the_end, world_of
from tests.upgrade.write_recordings import RECORDED, record
from topics.manifests import decode_manifest
from topics.names import Role

RECORDINGS = Path(__file__).parent / "recordings"


@dataclass(frozen=True)
class Recorded:
    """A recording of an earlier version."""

    folder: Path

    def __str__(self) -> str:
        return f"{self.folder.parent.name}-{self.folder.name}"

    def job(self) -> DeployedJob:
        return DeployedJob.from_bytes(Recording.open(self.folder).job_record)


every_recording = pytest.mark.parametrize(
    "recorded", [Recorded(folder) for folder in sorted(RECORDINGS.glob("*/*"))], ids=str
)


def run_today(job: DeployedJob, folder: Path) -> World:
    """The whole job, with the randomness with which it was recorded."""
    world = world_of(job, folder)
    run_to_the_end(world)
    world.shut()
    return world


def test_every_version_has_a_recording_of_every_job() -> None:
    for version in RECORDINGS.iterdir():
        assert {folder.name for folder in version.iterdir()} == set(RECORDED)


@every_recording
def test_recordings_say_what_was_published(recorded: Recorded, tmp_path: Path) -> None:
    job, recording = recorded.job(), Recording.open(recorded.folder)
    assert recording.epochs == range(1, middle_of(job) + 1)
    world = run_today(job, tmp_path)
    manifests, integers, published = world.manifests(), world.integers(), world.published()
    for manifest in recording.manifests():
        then = manifests[manifest.epoch]
        assert (manifest.fate, manifest.producers) == (then.fate, then.producers)
        assert manifest.contributors == then.contributors
        assert manifest.population == then.population
    assert {row.epoch: row.payload for row in recording.partials()} == {
        epoch: integers[epoch] for epoch in recording.epochs
    }
    for estimate in recording.estimates():
        found = published_estimate(estimate, job.deployment).to_json()
        assert same(found, published[estimate.epoch].to_json())
    for epoch, words in recording.windows():
        aggregator = job.aggregator()
        aggregator.add(job.local_epoch(epoch), words.values, words.counts)
        assert aggregator.to_bytes() == integers[epoch]


@every_recording
def test_recordings_are_gone_on_with(recorded: Recorded, tmp_path: Path) -> None:
    job, path = recorded.job(), tmp_path / "recording"
    shutil.copytree(recorded.folder, path)
    record(job, run_today(job, tmp_path / "job").log, path)
    assert Recording.open(path).epochs == range(1, job.epochs.count + 1)
    found = verify(path, deep=True)
    assert found.problems == []
    assert found.reports > 0
    for file in path.glob("manifests-*"):
        # They tell how many records a window had, those of withheld ones included.
        assert not [name for name in pq.read_schema(file).names if "offset" in name]


@every_recording
def test_recordings_are_replayed(recorded: Recorded) -> None:
    recording = Recording.open(recorded.folder)
    _, log, results = replayed(RecordingSource(recording))
    assert results.integers == {row.epoch: row.payload for row in recording.partials()}
    for value in log.values(Role.MANIFESTS):
        manifest = decode_manifest(value)
        assert (manifest.first_offset, manifest.cut_offset) == (0, 0)
