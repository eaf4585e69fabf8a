"""Windows in device jobs: one report per device and epoch, decrypted and without its tag."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dpstream.pipeline.actions import Steps, catch_up
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.device_admission import AdmittedReports, DeviceAdmission
from dpstream.pipeline.stages.device_decision import Collectors, DeviceDecision
from dpstream.pipeline.stages.device_windows import DeviceWindow, DeviceWindows
from dpstream.pipeline.stages.environment import OpenSpillFile
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.populations import Population
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_source import WindowSource
from dpstream.topics.loose_batches import Watermark
from dpstream.topics.names import Role

_STATUS_SECONDS: Final = 1.0
"""Seconds between two checks for live collectors."""


class DeviceSource(WindowSource[DeviceWindow, AdmittedReports | Watermark]):
    _timeline: Timeline
    _log: DecisionLog
    _decision: DeviceDecision

    def __init__(self, job: DeployedJob, keys: KeyRing, open_spill_file: OpenSpillFile) -> None:
        assert job.devices is not None
        self._job = job
        self._devices = job.devices
        self._open_spill_file = open_spill_file
        self._admission = DeviceAdmission(job, keys)
        self._admission.check_keys()
        self._collectors = Collectors(job)
        self._status_log = job.cursor(Role.STATUS, self._collectors.apply)
        self._next_look = 0.0
        self._population = Population(job)
        self._enrollment_log = job.cursor(Role.DEVICES, self._population.apply)

    def begin(
        self, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> DeviceDecision:
        self._log, self._timeline = log, timeline
        self._decision = DeviceDecision(
            self._job, registry, log, timeline, self._collectors, self._population
        )
        return self._decision

    def admit(self, partition: int, value: bytes) -> AdmittedReports | Watermark | Rejection:
        return self._admission.admit(partition, value)

    def new_window(
        self, epoch: int, now: float, multiset: Callable[[], MessageMultiset]
    ) -> DeviceWindow:
        return DeviceWindow(
            epoch,
            now,
            self._job.content_format,
            multiset,
            self._open_spill_file,
            sealed=self._devices.key_at(epoch) is not None,
            sampled=self._job.protocol_entry.sampled is not None,
        )

    def windows_again(
        self, registry: ProducerRegistry, multiset: Callable[[], MessageMultiset]
    ) -> DeviceWindows:
        return DeviceWindows(
            self._job,
            self._admission,
            lambda epoch, now: self.new_window(epoch, now, multiset),
        )

    def add(self, window: DeviceWindow, record: AdmittedReports | Watermark) -> Mapping[str, int]:
        if isinstance(record, Watermark):
            window.watermarks.add(record.collector)
            return {}
        window.add(record)
        return {"reports": len(record.tags), "unusable_reports": record.left_out}

    def may_complete(self, window: DeviceWindow, record: AdmittedReports | Watermark) -> bool:
        return isinstance(record, Watermark)

    def size(self, record: AdmittedReports | Watermark) -> int:
        return 0 if isinstance(record, Watermark) else len(record.tags)

    def arrived(self, window: DeviceWindow) -> Mapping[str, int]:
        return {"reports": window.contributors}

    def awaited(self, window: DeviceWindow) -> Iterator[str]:
        return self._decision.missing(window)

    def look(self, now: float) -> Steps[None]:
        if now >= self._next_look:
            self._next_look = now + _STATUS_SECONDS
            yield from self._status_log.catch_up()
            self._population.forget_before(self._decision.oldest_undecided)

    def before_decision(self) -> Steps[None]:
        yield from catch_up((self._enrollment_log, self._status_log))

    def counts(self, window: DeviceWindow) -> Mapping[str, int]:
        return {"contradicting_reports": window.contradicting}

    def idle_seconds(self) -> float | None:
        oldest, last = self._decision.oldest_undecided, self._job.last_epoch
        if last is not None and oldest > last:
            return math.inf
        now, running = self._timeline.now, self._timeline.running_epoch
        if now is None or running is None or oldest < running:
            return None
        return self._timeline.seconds_until_end(running)
