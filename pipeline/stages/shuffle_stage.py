"""The shuffle stage: one window is one whole epoch; decide once, forget the order.

Raw batches of epoch e lie in partition e mod P. The stage collects them until `shuffle_decision`
says that the window is decided; writes a manifest; reads the manifest log (`decision_log`), and
goes on under the first manifest of the epoch, its own or another worker's; has `window_writer`
write the window's words as a multiset, without key, headers, time or order; and only then lets the
committed offset pass the window's first record. Everything after the manifest is a function of it,
so that a worker may be killed, paused or doubled at any point: what is repeated is repeated
identically.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeline.actions import (
    Append,
    Flush,
    Steps,
    end_offset,
)
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.jobs.roster import EnrolledProducer
from pipeline.jobs.sealed import stage_party
from pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.boxes_of_windows import check_keys
from pipeline.stages.decision_log import Decision, DecisionLog
from pipeline.stages.finished_windows import FinishedWindow, WindowListener, ignore_window
from pipeline.stages.multisets import Scratch, temporary_file
from pipeline.stages.raw_stage import RawPartition, RawStage
from pipeline.stages.shuffle_decision import ShuffleDecision, Verdict
from pipeline.stages.stage_noise import StageNoise
from pipeline.stages.timeline import Timeline
from pipeline.stages.windows import PunctuationError, Window
from topics.batches import Batch, Punctuation
from topics.manifests import Fate, Manifest, encode_manifest
from topics.names import Role
from topics.records import Reason

# A heartbeat names this many open windows, and of each this many producers it waits for.
_WINDOWS_SHOWN = 8
_NAMES_SHOWN = 8
# Without a calendar all producers are gone through for every open window: with a thousand of them
# at most ten times a second.
_SECONDS_PER_PRODUCER = 1e-4


@dataclass(slots=True)
class _Partition(RawPartition):
    """`checked_with` is what was known when silent epochs were last looked for."""

    checked_with: object = None


class ShuffleStage(RawStage[_Partition]):
    """Turns the batches of ``<job>.reports`` into the chunks of ``<job>.shuffled``.

    An epoch goes through these states, at the worker that owns its partition:

    * *collecting*: a window is open, and records join it. It is opened by the first record, or
      without any where later epochs are decided. From `due_at` on, when its time has come, its
      grace period runs.
    * *closing*: grace is over, and `closing_end` is where the partition ended then. Records up to
      there still join.
    * *owed*: a manifest that releases it is in the log, and its words are to be written.
    * *written*: they are. An epoch that is not released is through with its manifest.

    A window is decided by its `Verdict`, or when everything up to `closing_end` is read; one whose
    producers were all retired is forgotten instead. What another worker has decided is owed from
    wherever it was. The committed offset stays below the first record of every epoch that is not
    through. A partition that is taken over starts there: its epochs are collected again, or owed,
    by what the logs say alone.

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
        NoiseKeyError: the job asks for dummies, and this is not the key it was deployed with.
        SealingKeyError: reports are sealed, and the stage's private keys are not there.
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
        super().__init__(
            job,
            1,
            Admission(job, keys),
            StageNoise(job, noise_key),
            identifiers=identifiers,
            wall_clock=wall_clock,
            generator=generator,
            scratch=scratch,
            listener=listener,
        )
        self._timeline = Timeline(job, broker_time)
        self._begin_logs()
        self._now = self._next_time_check = 0.0

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Take in one record of the raw topic."""
        self._now = now
        self._timeline.note_written(written)
        state = self._partitions[partition]
        state.position = offset + 1
        admitted = self._admission.admit(partition, value)
        refusal = (
            admitted
            if isinstance(admitted, Refusal)
            else (yield from self._place(state, offset, admitted, now, written))
        )
        if refusal is not None:
            yield from self._refuse(state, offset, value, refusal)
        for window in list(state.windows.values()):
            if window.closing_end is not None and state.position >= window.closing_end:
                yield from self._decide(state, window)

    def tick(self, now: float) -> Steps[None]:
        """Notice what the other workers decided and whose time is up; commit the floor."""
        self._now = now
        if not self._partitions:
            return
        yield from self._catch_up()
        self._bound_memory()
        checks_time = self._timeline.by_calendar or now >= self._next_time_check
        if checks_time:
            self._next_time_check = now + _SECONDS_PER_PRODUCER * len(self._roster)
        for state in list(self._partitions.values()):
            self._open_silent_epochs(state, now)
            for window in list(state.windows.values()):
                if checks_time:
                    self._check_time(window, now)
                yield from self._expire(state, window, now)
            yield from self._write_owed(state)
            yield from self._commit_floor(state)

    def unfinished(self, partition: int) -> str:
        """Epochs that are decided and not written, or not decided."""
        first = self._decision.oldest_undecided
        while first in self._log.decided or self._job.partition_of(first) != partition:
            first += 1
        state = self._partitions.get(partition)
        owed = () if state is None else state.owed
        return f"epoch {min([first, *owed])} and later ones of its partition"

    def heartbeat(self) -> dict[str, object]:
        """Open windows (oldest first), whom they wait for, and what has been counted so far.

        ``grace_left`` is None as long as a window's time has not come. ``ahead`` names the
        producers that send epochs whose time has not come, and by how many.

        Where devices rely on this stage to hide their messages (``hides_messages``), how many they
        are is not for all to see before a window is released: devices are counted instead, who are
        no secret, also as ``reports`` and ``late_reports`` of ``counts``.
        """
        windows = sorted(
            (w for state in self._partitions.values() for w in state.windows.values()),
            key=lambda window: window.epoch,
        )
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
            for window in windows[:_WINDOWS_SHOWN]
        ]
        return {
            "hides_messages": self._hides_messages,
            "open_windows": len(windows),
            "windows": shown,
            "ahead": [
                {"producer": each.producer, "epochs": each.epochs}
                for each in islice(self._timeline.ahead(self._roster, self._log), _NAMES_SHOWN)
            ],
            "counts": dict(self.counts),
        }

    def _grace_left(self, window: Window) -> float | None:
        """Seconds until a window is decided without those it waits for."""
        ends = window.grace_ends(self._job.shuffle.grace)
        return None if ends is None else max(0.0, round(ends - self._now, 1))

    def _own(self, partition: int, floor: int) -> _Partition:
        return _Partition(partition, position=floor, floor=floor)

    def _begin_logs(self) -> None:
        self._log = DecisionLog(self._job, self._owe)
        self._manifest_log = self._job.cursor(Role.MANIFESTS, self._log.apply)
        self._decision = ShuffleDecision(self._job, self._roster, self._log, self._timeline)

    def _owe(self, decision: Decision) -> None:
        """A decision was made: the owner of its partition owes the words.

        The floor never passes the first offset of an unfinished window, so what begins below it is
        finished.
        """
        manifest = decision.manifest
        state = self._partitions.get(self._job.partition_of(manifest.epoch))
        if (
            state is not None
            and manifest.fate is Fate.RELEASED
            and manifest.first_offset >= state.floor
            and manifest.epoch not in state.written
        ):
            state.owed[manifest.epoch] = decision

    def _place(
        self,
        state: _Partition,
        offset: int,
        record: Batch | Punctuation,
        now: float,
        written: int | None,
    ) -> Steps[Refusal | None]:
        """Put a record into its window, or say why it has none."""
        producer = self._roster.find(record.enrolment)
        if producer is None:
            yield from self._producer_log.catch_up()
            producer = self._roster.find(record.enrolment)
        if self._decision.too_far_ahead(record.epoch) is not None:
            # Only as far as this worker knows: the others may have decided more.
            yield from self._manifest_log.catch_up()
        if record.epoch in self._log.decided:
            self._note_punctuation(record)
            self._count_late(record, offset)
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

    def _open(self, state: _Partition, epoch: int, now: float) -> Window:
        window = state.windows.get(epoch)
        if window is None:
            window = state.windows[epoch] = Window(epoch, now, self._multiset)
            if self._timeline.by_calendar:
                self._check_time(window, now)
        return window

    def _count_late(self, record: Batch | Punctuation, offset: int) -> None:
        decision = self._log.recent(record.epoch)
        within = decision is not None and offset < decision.manifest.cut_offset
        if not within:
            self.counts["late_reports"] += self._public_size(record)

    def _check_time(self, window: Window, now: float) -> None:
        """Note when the time of a window has come; it is checked when anything has changed."""
        known = self._known, len(window.contributions)
        if self._timeline.by_calendar or (window.due_at is None and window.checked_with != known):
            window.checked_with = known
            if not self._decision.time_has_come(window.epoch, window):
                # The calendar may have become known since, or the broker's clock set back.
                window.due_at = None
            elif window.due_at is None:
                window.due_at = now

    @property
    def _known(self) -> tuple[int, int, int]:
        """Changes with all that says, without a calendar, whether an epoch's time has come."""
        return self._roster.version, self._timeline.version, self._manifest_log.position

    def _open_silent_epochs(self, state: _Partition, now: float) -> None:
        """Open the epochs of this partition without a record that are due.

        Those before a decided one, once their time has come or an operator drains them.
        """
        known = self._known, state.position
        unchanged = state.checked_with == known and not self._timeline.by_calendar
        if self._log.first_epoch is None or unchanged:
            return
        state.checked_with = known
        for epoch in self._decision.due_silent_epochs(state.number, state.position, state.windows):
            self._open(state, epoch, now)

    def _expire(self, state: _Partition, window: Window, now: float) -> Steps[None]:
        match self._decision.verdict(window, state.position, now):
            case Verdict.SETTLED | Verdict.DRAINED:
                yield from self._decide(state, window)
            case Verdict.COMPLETE:
                yield from self._decide(state, window, as_complete=True)
            case Verdict.ABANDONED:
                del state.windows[window.epoch]
                window.close()
            case Verdict.OVERDUE:
                # Nothing that is in the log now may be called late because this worker was slow.
                window.closing_end = yield from end_offset(Role.REPORTS, state.number)
                if state.position >= window.closing_end:
                    yield from self._decide(state, window)
            case Verdict.OPEN:
                pass

    def _decide(
        self, state: _Partition, window: Window, *, as_complete: bool = False
    ) -> Steps[None]:
        """Settle an epoch for good, and write its window.

        Who is expected is read to its end first: a window that is decided `as_complete` stays open
        if somebody has registered meanwhile.
        """
        own: Manifest | None = None
        yield from self._catch_up()
        if self._log.exists(window.epoch) and window.epoch not in self._log.decided:
            if as_complete and not self._decision.complete(window):
                return
            own = self._decision.manifest(window, state.position, self._wall_clock())
            yield Append(Role.MANIFESTS, 0, encode_manifest(own))
            yield Flush()
            yield from self._manifest_log.catch_up()
        decision = self._log.recent(window.epoch)
        if decision is not None:
            self.counts[f"windows {decision.manifest.fate.value}"] += 1
            if own is not None and decision.manifest == own:
                self._listener(
                    FinishedWindow(own.epoch, own.fate, own.contributors, began=window.opened_at)
                )
                if window.epoch in state.owed and not window.set_aside:
                    yield from self._write(state, decision, window.words)
        elif self._log.exists(window.epoch):
            assert window.epoch in self._log.decided, "an acknowledged manifest is in the log"
        del state.windows[window.epoch]
        window.close()
        yield from self._write_owed(state)
        yield from self._commit_floor(state)
