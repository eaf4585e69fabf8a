"""The shuffle stage where devices report for themselves: one report for each device and epoch.

What it does with windows, and in which states they are, is told in `deciding_stage`. Here tags are
dropped and seals opened.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import numpy as np

from dpstream.pipeline.actions import Steps, catch_up
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from dpstream.pipeline.stages.admission import Refusal
from dpstream.pipeline.stages.deciding_stage import WINDOWS_SHOWN, DecidingPartition, DecidingStage
from dpstream.pipeline.stages.device_admission import AdmittedReports, DeviceAdmission
from dpstream.pipeline.stages.device_decision import Collectors, DeviceDecision
from dpstream.pipeline.stages.device_windows import DeviceWindow, DeviceWindows
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.populations import Population
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.topics.loose_batches import Watermark
from dpstream.topics.names import Role
from dpstream.topics.records import Reason

_NAMES_SHOWN = 8
_STATUS_SECONDS: Final = 1.0
"""How often it is looked which collectors are alive."""


class DeviceStage(DecidingStage[DeviceWindow, AdmittedReports | Watermark]):
    """Turns what collectors write to ``<job>.reports`` into the chunks of ``<job>.shuffled``.

    Args:
        job: the deployed job, whose devices report for themselves.
        identifiers: makes the random 16-byte ids of attempts.
        wall_clock: milliseconds since 1970, for the manifests' timestamps.
        broker_time: the same by the broker's clock; None while it is not known, and nothing is
            decided.
        generator: cryptographic generator for ``order: random``.
        scratch: opens scratch files for what is not held in memory.
        noise_key: for jobs that ask this stage for dummies.
        keys: of this stage, where reports are sealed.
        listener: is told of every window that this worker has decided.

    Raises:
        WrongKeyError: the job asks for dummies, and this is not the key it was deployed with.
        WrongKeyError: reports are sealed, and the stage's private keys are not there.
    """

    def __init__(
        self,
        job: DeployedJob,
        *,
        identifiers: Callable[[], bytes],
        wall_clock: Callable[[], int],
        broker_time: Callable[[], int | None],
        generator: np.random.Generator,
        scratch: Scratch = temporary_file,
        noise_key: NoiseKey | None = None,
        keys: KeyRing = NO_KEYS,
        listener: WindowListener = ignore_window,
    ) -> None:
        self._admission = DeviceAdmission(job, keys)
        self._admission.check_keys()
        self._collectors = Collectors(job)
        self._status_log = job.cursor(Role.STATUS, self._collectors.apply)
        self._next_look = 0.0
        self._population = Population(job)
        self._enrolment_log = job.cursor(Role.DEVICES, self._population.apply)
        super().__init__(
            job,
            StageNoise(job, noise_key),
            identifiers=identifiers,
            wall_clock=wall_clock,
            broker_time=broker_time,
            generator=generator,
            scratch=scratch,
            listener=listener,
        )

    def tick(self, now: float) -> Steps[None]:
        """See `DecidingStage.tick`; now and then, see which collectors are alive."""
        if self._partitions and now >= self._next_look:
            self._next_look = now + _STATUS_SECONDS
            yield from self._status_log.catch_up()
            self._population.forget_before(self._decision.oldest_undecided)
        yield from super().tick(now)

    def heartbeat(self) -> dict[str, object]:
        """Open windows (oldest first), whom they wait for, and what has been counted so far."""
        windows = self._oldest_windows()
        return {
            "hides_messages": self._hides_messages,
            "open_windows": len(windows),
            "windows": [
                {
                    "epoch": window.epoch,
                    # One that sends again counts again: devices are known when windows close.
                    "reports": window.contributors,
                    "grace_left": self._grace_left(window),
                    "waits_for": [*islice(self._decision.missing(window), _NAMES_SHOWN)],
                }
                for window in windows[:WINDOWS_SHOWN]
            ],
            "ahead": [],
            "decided": self._decided_so_far(),
            "counts": dict(self.counts),
        }

    @property
    def _decision(self) -> DeviceDecision:
        return self._decides

    def rests(self) -> float | None:
        """See `Stage.rests`; the calendar alone says that an epoch is over, until all are."""
        last = self._job.last_epoch
        if last is not None and self._decision.oldest_undecided > last:
            return super().rests()
        now, running = self._timeline.now, self._timeline.running_epoch
        if now is None or running is None or self._decision.oldest_undecided < running:
            return None
        left = self._timeline.seconds_until_end(running)
        return None if left is None or super().rests() is None else left

    def _begin_logs(self) -> None:
        super()._begin_logs()
        self._decides = DeviceDecision(
            self._job, self._roster, self._log, self._timeline, self._collectors, self._population
        )

    def _decide(
        self,
        state: DecidingPartition[DeviceWindow],
        window: DeviceWindow,
        *,
        as_complete: bool = False,
    ) -> Steps[None]:
        """See `DecidingStage`; who has enrolled, and who takes reports, is read to its end."""
        yield from catch_up((self._enrolment_log, self._status_log))
        yield from super()._decide(state, window, as_complete=as_complete)
        if window.epoch in self._log.decided:
            self.counts["contradicting_reports"] += window.contradicting

    def _admit(self, partition: int, value: bytes) -> AdmittedReports | Watermark | Refusal:
        return self._admission.admit(partition, value)

    def _windows_again(self) -> DeviceWindows:
        return DeviceWindows(self._job, self._admission, self._new_window)

    def _new_window(self, epoch: int, now: float) -> DeviceWindow:
        assert self._job.devices is not None
        return DeviceWindow(
            epoch,
            now,
            self._job.content_form,
            self._multiset,
            self._scratch,
            sealed=self._job.devices.key_at(epoch) is not None,
        )

    @property
    def _known(self) -> object:
        return self._manifest_log.position

    def _place(
        self,
        state: DecidingPartition[DeviceWindow],
        offset: int,
        record: AdmittedReports | Watermark,
        now: float,
        written: int | None,
    ) -> Steps[Refusal | None]:
        if self._decision.too_far_ahead(record.epoch) is not None:
            # Only as far as this worker knows: the others may have decided more.
            yield from self._manifest_log.catch_up()
        reports = record if isinstance(record, AdmittedReports) else None
        if record.epoch in self._log.decided:
            if reports is not None:
                self._count_late(record.epoch, len(reports.tags), offset)
            return None
        refusal = self._unexpected(record.epoch, written)
        if refusal is not None:
            return refusal
        window = self._open(state, record.epoch, now)
        window.note_record(offset, now)
        if reports is None:
            assert isinstance(record, Watermark)
            window.watermarks.add(record.collector)
            if self._decision.complete(window):
                yield from self._decide(state, window, as_complete=True)
            return None
        window.add(reports)
        self.counts["reports"] += len(reports.tags)
        self.counts["unusable_reports"] += reports.left_out
        return None

    def _unexpected(self, epoch: int, written: int | None) -> Refusal | None:
        if epoch < self._decision.oldest_undecided:
            return Refusal(
                Reason.EPOCH,
                f"this deployment begins with a later epoch, {self._decision.oldest_undecided}",
            )
        problem = self._timeline.early(epoch, written) or self._decision.too_far_ahead(epoch)
        return None if problem is None else Refusal(Reason.EPOCH, problem)
