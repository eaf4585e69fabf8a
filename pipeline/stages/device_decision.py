"""Close windows in device jobs, whose reports arrive through collectors.

A window closes at the end of its grace period, which starts at the end of its epoch by the broker's
clock. It closes earlier if every live collector has written its watermark for the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from itertools import islice
from typing import Final

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD, epoch_problem
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.device_windows import DeviceWindow
from dpstream.pipeline.stages.populations import Population
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_decision import WindowDecision
from dpstream.topics.manifests import Manifest

ALIVE_MS: Final = 30_000
"""Milliseconds, by the broker's clock, to wait for a collector that sends no heartbeat."""
_SILENT_AT_ONCE: Final = 64
COLLECT: Final = "collect"
"""Stage name in the heartbeats of collectors, in ``<job>.status``."""


class Collectors:
    def __init__(self, job: DeployedJob) -> None:
        self._deployment = job.deployment.hex()
        self._heard: dict[bytes, tuple[int, bytes]] = {}

    def apply(self, record: LogRecord) -> None:
        try:
            body = json.loads(record.value)
            if body.get("deployment") != self._deployment:
                return
            if body.get("stopped"):
                self._heard.pop(record.key or b"", None)
            elif body.get("stage") == COLLECT and record.key:
                self._heard[record.key] = record.timestamp, bytes.fromhex(body["worker"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            return

    def alive(self, now: int) -> set[bytes]:
        return {
            collector for written, collector in self._heard.values() if now - written <= ALIVE_MS
        }


class DeviceDecision(WindowDecision[DeviceWindow]):
    def __init__(
        self,
        job: DeployedJob,
        registry: ProducerRegistry,
        log: DecisionLog,
        timeline: Timeline,
        collectors: Collectors,
        population: Population,
    ) -> None:
        super().__init__(job, registry, log, timeline)
        self._collectors = collectors
        self._population = population

    @property
    def first_epoch(self) -> int:
        return self._job.first_epoch

    def complete(self, window: DeviceWindow) -> bool:
        now = self._timeline.now
        if now is None or not self.time_has_come(window.epoch, window):
            return False
        alive = self._collectors.alive(now)
        return bool(alive) and alive <= window.watermarks

    def missing(self, window: DeviceWindow) -> Iterator[str]:
        alive = self._collectors.alive(self._timeline.now or 0)
        for collector in sorted(alive - window.watermarks):
            yield f"collector {collector.hex()[:8]}"

    def time_has_come(self, epoch: int, window: DeviceWindow | None) -> bool:
        return self._timeline.has_ended(epoch) is True

    def due_epochs_without_records(
        self, partition: int, position: int, windows: Container[int]
    ) -> Iterator[int]:
        """See `WindowDecision`. Only the calendar ends an epoch; the oldest epochs come first."""
        running = self._timeline.running_epoch
        if running is None:
            return
        oldest = self.oldest_undecided
        latest = min(running - 1, oldest + EPOCHS_AHEAD)
        undecided = self._log.decided.missing(oldest, latest)
        own = (epoch for epoch in undecided if self._job.topics.partition_of(epoch) == partition)
        for epoch in islice(own, _SILENT_AT_ONCE):
            if epoch_problem(self._job, epoch) is None and epoch not in windows:
                yield epoch

    def manifest(self, window: DeviceWindow, position: int, timestamp: int) -> Manifest:
        contributors = window.devices
        # A device that falsely claims an earlier enrollment is present nevertheless.
        population = max(contributors, self._population.count(window.epoch))
        first_epoch = self._log.first_epoch
        return Manifest(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=window.epoch,
            window_status=self._window_status(contributors),
            first_offset=position if window.first_offset is None else window.first_offset,
            cut_offset=position,
            first_epoch=self.first_epoch if first_epoch is None else first_epoch,
            producers=(contributors > 0,),
            populations=(population,) if contributors else (),
            contributors=contributors,
            population=population,
            timestamp=timestamp,
        )
