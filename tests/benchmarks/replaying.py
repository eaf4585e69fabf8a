"""In-memory replay, by the real stages, of files with windows of a million one-byte reports.

``python -m tests.benchmarks.replaying SOURCE RUNS FOLDER``

Each source runs in a separate process, to measure its memory. The time includes opening and
verifying the source, splitting it into chunks, aggregating and publishing. Prints `Figures`.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryWorker
from dpstream.pipeline.recording.recorder import Recorder, open_recording
from dpstream.pipeline.recording.recordings import Recording, RecordingFolder
from dpstream.pipeline.recording.replay.in_memory import MemoryReplay
from dpstream.pipeline.recording.replay.recording_source import RecordingSource
from dpstream.pipeline.recording.replay.replay_plan import ReplayRange, plan_replay
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.topic_source import TopicSource
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.randomizers.dyadic import orders_due
from dpstream.topics.chunks import Chunk, encode_chunk
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.names import Role
from tests.benchmarks.many_epochs import FileLog
from tests.benchmarks.measuring import MEGABYTE, peak_megabytes
from tests.benchmarks.one_core import job_values

WINDOW = 1_000_000
EPOCHS = 32
SOURCES = {
    "recording": "sorted",
    "topics, order: sorted": "sorted",
    "topics, order: random": "random",
}
"""Replayed source, and the order of its windows; random order writes every message."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of a source.

    Rates are per processor second in the median run. `peak_megabytes` is resident memory.
    """

    source: str
    reports: int
    reports_per_second: int
    megabytes: float
    peak_megabytes: float


def write_topics(log: FileLog, order: str) -> DeployedJob:
    job = deploy_job(make_job(job_values("reports", EPOCHS, order=order)), deployed_at=0)
    rng = np.random.default_rng(1)
    for epoch in range(1, EPOCHS + 1):
        manifest = Manifest(
            fingerprint=job.fingerprint,
            deployment=job.deployment,
            epoch=epoch,
            window_status=WindowStatus.RELEASED,
            first_offset=epoch,
            cut_offset=epoch,
            first_epoch=1,
            producers=(True,),
            populations=(WINDOW,),
            contributors=WINDOW,
            population=WINDOW,
            timestamp=epoch,
        )
        log.append(Append(Role.MANIFESTS, 0, encode_manifest(manifest)))
        drawn = rng.integers(0, 2 * orders_due(epoch), (WINDOW, 1), np.uint8)
        words = Messages(drawn) if order == "random" else Messages.canonical(drawn)
        chunks, attempt = split_messages(words), secrets.token_bytes(16)
        for index, chunk_words in enumerate(chunks):
            chunk = Chunk(
                job.fingerprint,
                job.deployment,
                epoch,
                epoch - 1,
                attempt,
                index,
                len(chunks),
                chunk_words,
            )
            log.append(Append(Role.SHUFFLED, job.topics.partition_of(epoch), encode_chunk(chunk)))
    stages: tuple[Stage, ...] = (build_stage(job, "aggregate", Environment()), PublishStage(job))
    for stage in stages:
        worker = MemoryWorker(stage, log)
        for partition in range(len(job.start_offsets[stage.role])):
            worker.run(worker.assign(partition))
        worker.run(worker.drain())
    return job


def record(job: DeployedJob, log: FileLog, folder: Path) -> None:
    folder.mkdir()
    place = RecordingFolder(folder)
    index = open_recording(place, job, from_epoch=None)
    recorder = Recorder(job, place, index, MemoryDriver(log).run)
    for _ in recorder.round():
        pass
    recorder.stop()


def replay(source: ReplaySource) -> int:
    plan = plan_replay(source, ReplayRange())
    source.check(plan.first, plan.windows_from, plan.last)
    job = deploy_replay(
        source.job, replayed_job(source.job), deployment=secrets.token_bytes(16), deployed_at=0
    )
    return sum(1 for _ in MemoryReplay(job, source, plan).run())


def timed(open_source: Callable[[], ReplaySource], runs: int) -> Iterator[float]:
    for _ in range(runs):
        before = time.process_time()
        published = replay(open_source())
        yield time.process_time() - before
        assert published == EPOCHS, "not all epochs were published"


def main() -> None:
    name, runs, place = sys.argv[1:]
    folder = Path(place)
    log = FileLog(folder)
    job = write_topics(log, SOURCES[name])
    if name == "recording":
        recorded = folder / "recorded"
        record(job, log, recorded)
        size = sum(file.stat().st_size for file in recorded.glob("windows-*"))

        def open_source() -> ReplaySource:
            return RecordingSource(Recording.open(recorded))
    else:

        def open_source() -> ReplaySource:
            return TopicSource(job, MemoryDriver(log).run)

        size = open_source().stored(range(1, EPOCHS + 1)).bytes
    seconds = median(timed(open_source, int(runs)))
    figures = Figures(
        source=name,
        reports=EPOCHS * WINDOW,
        reports_per_second=round(EPOCHS * WINDOW / seconds),
        megabytes=round(size / MEGABYTE, 3),
        peak_megabytes=round(peak_megabytes(os.getpid()), 1),
    )
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
