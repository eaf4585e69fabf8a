"""The shuffle stage where producers report: one window is one whole epoch, decided once.

What it does with windows, and in which states they are, is told in `deciding_stage`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.jobs.roster import EnrolledProducer
from dpstream.pipeline.jobs.sealed import stage_party
from dpstream.pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from dpstream.pipeline.stages.admission import Admission, Refusal
from dpstream.pipeline.stages.boxes_of_windows import check_keys
from dpstream.pipeline.stages.deciding_stage import WINDOWS_SHOWN, DecidingPartition, DecidingStage
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.pipeline.stages.window_writer import ProducerWindows
from dpstream.pipeline.stages.windows import PunctuationError, Window, public_size
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.records import Reason

# Of an open window a heartbeat names this many producers that it waits for.
_NAMES_SHOWN = 8
# Without a calendar all producers are gone through for every open window: with a thousand of them
# at most ten times a second.
_SECONDS_PER_PRODUCER = 1e-4


class ShuffleStage(DecidingStage[Window, Batch | Punctuation]):
    """Turns the batches of ``<job>.reports`` into the chunks of ``<job>.shuffled``.

    Args:
        job: the deployed job.
        identifiers: makes the random 16-byte ids of attempts.
        wall_clock: milliseconds since 1970, for the manifests' timestamps.
        broker_time: the same by the broker's clock, for the calendar; None while it is not known.
        generator: cryptographic generator for ``order: random``.
        scratch: opens scratch files for windows whose words do not fit a table of counts.
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
        if job.seals_batches:
            check_keys(job, stage_party(0), keys)
        self._admission = Admission(job, keys)
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

    @property
    def _decision(self) -> ShuffleDecision:
        return self._decides

    def _begin_logs(self) -> None:
        super()._begin_logs()
        self._decides = ShuffleDecision(self._job, self._roster, self._log, self._timeline)

    def _admit(self, partition: int, value: bytes) -> Batch | Punctuation | Refusal:
        return self._admission.admit(partition, value)

    def _windows_again(self) -> ProducerWindows:
        return ProducerWindows(self._job, self._admission, self._roster, self._multiset, self.role)

    def _new_window(self, epoch: int, now: float) -> Window:
        return Window(epoch, now, self._multiset)

    def heartbeat(self) -> dict[str, object]:
        """Open windows (oldest first), whom they wait for, and what has been counted so far.

        ``grace_left`` is None as long as a window's time has not come. ``ahead`` names the
        producers that send epochs whose time has not come, and by how many.

        Where devices rely on this stage to hide their messages (``hides_messages``), how many they
        are is not for all to see before a window is released: devices are counted instead, who are
        no secret, also as ``reports`` and ``late_reports`` of ``counts``.
        """
        windows = self._oldest_windows()
        shown = [
            {
                "epoch": window.epoch,
                **({} if self._hides_messages else {"reports": window.messages}),
                "devices": window.contributors,
                "grace_left": self._grace_left(window),
                "waits_for": [
                    producer.name
                    for producer in islice(self._decision.missing(window), _NAMES_SHOWN)
                ],
            }
            for window in windows[:WINDOWS_SHOWN]
        ]
        return {
            "hides_messages": self._hides_messages,
            "open_windows": len(windows),
            "windows": shown,
            "ahead": [
                {"producer": each.producer, "epochs": each.epochs}
                for each in islice(self._timeline.ahead(self._roster, self._log), _NAMES_SHOWN)
            ],
            "decided": self._decided_so_far(),
            "counts": dict(self.counts),
        }

    def _place(
        self,
        state: DecidingPartition[Window],
        offset: int,
        record: Batch | Punctuation,
        now: float,
        written: int | None,
    ) -> Steps[Refusal | None]:
        producer = self._roster.find(record.enrolment)
        if producer is None:
            yield from self._producer_log.catch_up()
            producer = self._roster.find(record.enrolment)
        if self._decision.too_far_ahead(record.epoch) is not None:
            # Only as far as this worker knows: the others may have decided more.
            yield from self._manifest_log.catch_up()
        if record.epoch in self._log.decided:
            self._note_punctuation(record)
            self._count_late(record.epoch, self._public_size(record), offset)
            return None
        refusal = self._unexpected(producer, record.epoch, written)
        if refusal is not None:
            return refusal
        self._note_punctuation(record)
        window = self._open(state, record.epoch, now)
        window.note_record(offset, now)
        try:
            new = window.add(record)
        except PunctuationError as error:
            return Refusal(Reason.PUNCTUATION, str(error))
        if new:
            self.counts["reports"] += self._public_size(record)
        elif not self._hides_messages:
            self.counts["duplicates"] += 1
        if window.complete(record.enrolment) is not None and self._decision.complete(window):
            yield from self._decide(state, window, as_complete=True)
        return None

    def _public_size(self, record: Batch | Punctuation) -> int:
        return public_size(record, hides_messages=self._hides_messages)

    def _note_punctuation(self, record: Batch | Punctuation) -> None:
        if isinstance(record, Punctuation):
            self._timeline.note_punctuation(record.enrolment, record.epoch)

    def _unexpected(
        self, producer: EnrolledProducer | None, epoch: int, written: int | None
    ) -> Refusal | None:
        if producer is None:
            return Refusal(Reason.ENROLMENT, "nobody registered (first) under this enrolment id")
        if not producer.reports_at(epoch):
            return Refusal(
                Reason.ENROLMENT,
                f"the producer is registered from epoch {producer.first_epoch} to "
                f"{producer.last_epoch or 'the end'}, this is epoch {epoch}",
            )
        if epoch < self._decision.oldest_undecided:
            return Refusal(
                Reason.EPOCH,
                f"this deployment begins with a later epoch, {self._decision.oldest_undecided}",
            )
        problem = self._timeline.early(epoch, written) or self._decision.too_far_ahead(epoch)
        if problem is None:
            return None
        self._timeline.note_refusal(producer.enrolment, epoch)
        return Refusal(Reason.EPOCH, f"producer {producer.name} is ahead of time: {problem}")

    @property
    def _known(self) -> tuple[int, int, int]:
        """Changes with all that says, without a calendar, whether an epoch's time has come."""
        return self._roster.version, self._timeline.version, self._manifest_log.position

    @property
    def _seconds_of_a_time_check(self) -> float:
        return _SECONDS_PER_PRODUCER * len(self._roster)
