"""Jobs run in memory, for replays and comparison of results."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.key_files import KEY_BYTES, NoiseKey
from dpstream.pipeline.jobs.replays import deploy_replay, replayed_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.protocols.protocol import Example
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.recording.recorder import Recorder, open_recording
from dpstream.pipeline.recording.recordings import Recording, RecordingFolder
from dpstream.pipeline.recording.replay.in_memory import MemoryReplay
from dpstream.pipeline.recording.replay.recording_source import RecordingSource
from dpstream.pipeline.recording.replay.replay_plan import ReplayRange, plan_replay
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.topic_source import TopicSource
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage, stages_after_release
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import Manifest, decode_manifest
from dpstream.topics.names import JOBS_TOPIC, Role, jobs_topic
from tests.support.memory_cluster import MemoryCluster
from tests.support.sealing import SHUFFLE_KEYS, all_keys
from tests.support.small_run import generators

ORIGINAL, REPLAY = bytes(range(16)), bytes(range(16, 32))
DECIDED = 1_700_000_000_000
"""Time one second before the first epoch is finalized; others follow at intervals of a second."""
USERS = 40
KEYS = all_keys(SHUFFLE_KEYS)
"""Job file keys for reports sealed to one shuffle stage."""


@dataclass(frozen=True, slots=True)
class Results:
    """Estimates and integers of a job by epoch, without the deployment id."""

    estimates: Mapping[int, bytes]
    integers: Mapping[int, bytes]

    def part(self, first: int, last: int) -> Results:
        epochs = range(first, last + 1)
        return Results(
            {epoch: found for epoch, found in self.estimates.items() if epoch in epochs},
            {epoch: found for epoch, found in self.integers.items() if epoch in epochs},
        )


class RetainingLog(MemoryLog):
    """Log whose retention can delete records; reads skip deleted records."""

    def read(self, role: Role, partition: int, start: int, stop: int) -> Any:
        return super().read(role, partition, max(start, self.start(role, partition)), stop)

    def start(self, role: Role, partition: int) -> int:
        """Return the first retained offset."""
        return self.end(role, partition) - len(self.values(role, partition))


def example_job(protocol: str, example: Example, **changed: Any) -> Job:
    parameters = json.loads(json.dumps(dataclasses.asdict(example.parameters)))
    values = {
        "name": "live",
        "protocol": protocol,
        "parameters": parameters,
        "epochs": _epochs(protocol, example),
        "shuffle": {"minimum": max(10, example.minimum)},
        "topics": {"partitions": 2},
    }
    return make_job({**values, **changed})


def _epochs(protocol: str, example: Example) -> dict[str, Any]:
    """Recur if the example can: its horizon then ends during the tests."""
    try:
        PROTOCOLS[protocol].recurring(example.parameters)
    except ValueError:
        return {"count": max(6, example.last_epoch)}
    return {"count": max(2, example.last_epoch), "renew": True}


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """Completed job with its topics."""

    job: DeployedJob
    log: MemoryLog

    def write(self, cluster: MemoryCluster) -> None:
        topics = self.job.topic_settings()
        cluster.create_topics([jobs_topic(None), *topics.values()])
        cluster.append(JOBS_TOPIC, self.job.to_bytes(), key=b"live")
        for role, topic in topics.items():
            for partition in range(topic.partitions):
                for value in self.log.values(role, partition):
                    cluster.send(topic.name, value, partition)

    @classmethod
    def of(
        cls,
        job: Job,
        *,
        epochs: int = 6,
        first: int = 1,
        small: Collection[int] = (),
        absent: Collection[int] = (),
    ) -> LiveRun:
        """Run a job with too few devices in `small` epochs, and none in `absent` epochs."""
        deployed = deploy_job(job, deployed_at=1_000, deployment=ORIGINAL)
        key = NoiseKey(bytes(KEY_BYTES)) if deployed.needs_noise_key else None
        if key is not None:
            deployed = deployed.model_copy(update={"noise_key": key.digest})
        log, identifiers, seconds = RetainingLog(), itertools.count(1), itertools.count(1)
        shuffle = build_stage(
            deployed,
            "shuffle",
            Environment(
                identifiers=lambda: next(identifiers).to_bytes(16, "big"),
                wall_clock=lambda: DECIDED + 1000 * next(seconds),
                broker_time=lambda: DECIDED,
                generator=generators("shuffle", 0),
                noise_key=key,
                keys=KEYS,
            ),
        )
        later = stages_after_release(deployed)
        stages = [build_stage(deployed, name, Environment(keys=KEYS)) for name in later]
        workers = owners(deployed, log, shuffle, *stages)
        producer = Producer(
            deployed,
            None,
            name="p",
            transport=MemoryDriver(log),
            generators=generators,
            first_epoch=first,
        )
        users = [str(user) for user in range(USERS)]
        producer.enroll(users)
        rng = seeded_generator(1)
        slots = deployed.domain.slots
        for epoch in range(first, epochs + 1):
            present = 0 if epoch in absent else 5 if epoch in small else USERS - epoch % 3
            values = rng.integers(0, deployed.domain.size, USERS, np.int8)
            chosen = [int(value) for value in values]
            held: list[Any] = [[value] * (value > 0) for value in chosen]
            if deployed.domain.columns is not None:
                held = [[value % 2] * deployed.domain.columns for value in chosen]
            elif slots is None:
                held = chosen
            if present:
                producer.report(epoch, dict(zip(users[:present], held[:present], strict=True)))
            producer.close(epoch)
            settle(workers)
        producer.shut()
        return cls(deployed, log)

    @property
    def source(self) -> TopicSource:
        return TopicSource(self.job, MemoryDriver(self.log).run)

    @property
    def results(self) -> Results:
        return results_of(self.job, self.log)

    def record(self, folder: Path, **options: Any) -> RecordingSource:
        folder.mkdir()
        place = RecordingFolder(folder)
        requested = {"from_epoch": None, **options}
        recorder = Recorder(
            self.job,
            place,
            open_recording(place, self.job, **requested),
            MemoryDriver(self.log).run,
        )
        list(recorder.round())
        recorder.stop()
        return RecordingSource(Recording.open(folder))


def owners(job: DeployedJob, log: MemoryLog, *stages: Stage) -> list[MemoryWorker]:
    """Return a worker for each stage, which owns every partition."""
    workers, seen = [], set[Role]()
    for stage in stages:
        # The second reader of a topic commits under another name.
        reader = "another" if stage.role in seen else ""
        seen.add(stage.role)
        workers.append(MemoryWorker(stage, log, reader=reader))
    for worker in workers:
        for partition in range(len(job.start_offsets[worker.stage.role])):
            worker.run(worker.assign(partition))
    return workers


def settle(workers: Iterable[MemoryWorker]) -> None:
    """Let every stage process everything available."""
    for worker in workers:
        worker.run(worker.drain())


def manifests_of(job: DeployedJob, log: MemoryLog) -> Iterator[Manifest]:
    for value in log.values(Role.MANIFESTS):
        manifest = decode_manifest(value)
        if manifest.deployment == job.deployment:
            yield manifest


def results_of(job: DeployedJob, log: MemoryLog) -> Results:
    integers: dict[int, bytes] = {}
    partials = PartialLog(job, integers.__setitem__)
    for offset, value in enumerate(log.values(Role.PARTIALS)):
        partials.apply(LogRecord(offset, value))
    published = FirstEstimates(job)
    records = map(published.apply, log.values(Role.ESTIMATES))
    estimates = {
        record.epoch: replace(record, deployment=bytes(16)).to_bytes()
        for record in records
        if record is not None
    }
    return Results(estimates, integers)


class KeepingReplay(MemoryReplay):
    """In-memory replay that keeps its data for inspection."""

    def _drop(self) -> None:
        pass


def replayed(
    source: ReplaySource,
    replay_range: ReplayRange = ReplayRange(),  # noqa: B008 - frozen
    *,
    changed: Job | None = None,
    partitions: int | None = None,
) -> tuple[DeployedJob, MemoryLog, Results]:
    job = replayed_job(source.job, changed=changed, partitions=partitions)
    deployed = deploy_replay(source.job, job, deployment=REPLAY, deployed_at=2_000)
    done = KeepingReplay(deployed, source, plan_replay(source, replay_range), KEYS)
    list(done.run())
    return deployed, done.log, results_of(deployed, done.log)
