"""Replay in one process: the real aggregator and publisher on topics in memory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dpstream.pipeline.jobs.deployed_job import IDENTIFIER_BYTES, DeployedJob
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.recording.replay.replay_plan import ReplayPlan
from dpstream.pipeline.recording.replay.sources import ReplaySource
from dpstream.pipeline.recording.replay.writer import ReplayWriter
from dpstream.pipeline.stages.checkpoints import estimates_in
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import build_stage, stages_after_release
from dpstream.topics.manifests import Manifest
from dpstream.topics.names import Role


class MemoryReplay:
    def __init__(
        self,
        job: DeployedJob,
        source: ReplaySource,
        plan: ReplayPlan,
        keys: KeyRing = NO_KEYS,
    ) -> None:
        self._job = job
        self._plan = plan
        self._source = source
        self.log = MemoryLog()
        self._read = 0
        self._writer = ReplayWriter(
            job,
            source,
            plan,
            identifiers=partial(secrets.token_bytes, IDENTIFIER_BYTES),
        )
        environment = Environment(keys=keys)
        self._workers = [
            MemoryWorker(build_stage(job, name, environment), self.log, reader=name)
            for name in stages_after_release(job)
        ]
        for worker in self._workers:
            for partition in range(len(job.start_offsets[worker.stage.role])):
                worker.run(worker.assign(partition))

    def run(
        self, wait: Callable[[Manifest], None] = lambda manifest: None
    ) -> Iterator[EstimateRecord]:
        for item in self._plan.items(self._source):
            wait(item[0])
            self._workers[0].run(self._writer.write([item]))
            for worker in self._workers:
                worker.run(worker.drain())
            yield from self._new_estimates()
            self._drop()

    def _new_estimates(self) -> Iterable[EstimateRecord]:
        end = self.log.end(Role.ESTIMATES, 0)
        while self._read < end:
            found = self.log.read(Role.ESTIMATES, 0, self._read, end)
            yield from estimates_in(found.records)
            self._read = found.end

    def _drop(self) -> None:
        floors: dict[tuple[Role, int], int] = {}
        for worker in self._workers:
            committed = self.log.committed_by[worker.driver.reader]
            for place, offset in committed.items():
                floors[place] = min(offset, floors.get(place, offset))
        for (role, partition), offset in floors.items():
            self.log.delete_below(role, partition, offset)
