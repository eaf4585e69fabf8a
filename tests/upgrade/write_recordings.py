"""Writes what a version of the software records, for later versions to read and to go on with.

It is run by the version whose recordings are to be written, at the root of its sources::

    PYTHONPATH=. python tests/upgrade/write_recordings.py FOLDER

Recorded are jobs of `tests.upgrade.write_golden` as they are in the middle of an epoch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.recording.record import Recorder, open_recording
from pipeline.recording.recordings import RecordingFolder
from pipeline.simulation.memory import MemoryDriver, MemoryLog
from tests.upgrade.write_golden import jobs, run_first_half, world_of

# Reports of one and of several bytes and words, sorted or not, and noise of the stage.
RECORDED = ("future_rand", "random_order", "count_min", "hadamard", "single_message", "stage_noise")


def record(job: DeployedJob, log: MemoryLog, path: Path) -> None:
    """Record all that is published; begins a recording, or goes on with one."""
    folder = RecordingFolder(path)
    index = open_recording(folder, job, from_epoch=None, raw=False)
    recorder = Recorder(job, folder, index, MemoryDriver(log).run)
    for _ in recorder.round():
        pass
    recorder.stop()


if __name__ == "__main__":
    for name in RECORDED:
        path = Path(sys.argv[1]) / name
        path.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            world = world_of(jobs()[name], Path(scratch))
            run_first_half(world)
            world.shut()
        record(world.job, world.log, path)
