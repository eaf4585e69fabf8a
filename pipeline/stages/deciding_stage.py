"""What the stages do that decide windows: of reports that producers send, or devices themselves.

Raw records of epoch e lie in partition e mod P. The stage collects them until its `WindowDecision`
says that the window is decided; writes a manifest; reads the manifest log (`decision_log`), and
goes on under the first manifest of the epoch, its own or another worker's; has `window_writer`
write the window's words as a multiset, without key, headers, time or order; and only then lets the
committed offset pass the window's first record. Everything after the manifest is a function of it,
so that a worker may be killed, paused or doubled at any point: what is repeated is repeated
identically.

An epoch goes through these states, at the worker that owns its partition:

* *collecting*: a window is open, and records join it. It is opened by the first record, or without
  any where later epochs are decided. From `due_at` on, when its time has come, its grace period
  runs.
* *closing*: grace is over, and `closing_end` is where the partition ended then. Records up to there
  still join.
* *owed*: a manifest that releases it is in the log, and its words are to be written.
* *written*: they are. An epoch that is not released is through with its manifest.

A window is decided by its `Verdict`, or when everything up to `closing_end` is read; one whose
producers were all retired is forgotten instead. What another worker has decided is owed from
wherever it was. The committed offset stays below the first record of every epoch that is not
through. A partition that is taken over starts there: its epochs are collected again, or owed, by
what the logs say alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dpstream.pipeline.actions import Append, LogRecord, Steps, end_offset
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.admission import Refusal
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, Decisions
from dpstream.pipeline.stages.finished_windows import FinishedWindow, WindowListener
from dpstream.pipeline.stages.raw_stage import Owed, RawPartition, RawStage
from dpstream.pipeline.stages.scratch import Scratch
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.pipeline.stages.tallies import Tally
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_decision import Verdict, WindowDecision
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.frames import INTEGER_MAX
from dpstream.topics.manifests import DECIDED_FATES, Fate, Manifest
from dpstream.topics.names import Role

# A heartbeat names this many open windows.
WINDOWS_SHOWN = 8

WindowT = TypeVar("WindowT", bound=OpenWindow)
RecordT = TypeVar("RecordT")


@dataclass(slots=True)
class DecidingPartition(RawPartition[WindowT]):
    """What a deciding stage knows of a partition it owns.

    Attributes:
        checked_with: what was known when silent epochs were last looked for.
    """

    checked_with: object = None


class DecidingStage(RawStage[DecidingPartition[WindowT], WindowT], Generic[WindowT, RecordT]):
    """Turns the records of ``<job>.reports`` into the chunks of ``<job>.shuffled``.

    Args:
        job: the deployed job.
        noise: what this stage adds to windows.
        broker_time: milliseconds since 1970 by the broker's clock, for the calendar; None while it
            is not known.
        identifiers: makes the random 16-byte ids of attempts.
        wall_clock: milliseconds since 1970, for the manifests' timestamps.
        generator: cryptographic generator for ``order: random``.
        scratch: opens scratch files for windows whose words do not fit a table of counts.
        listener: is told of every window that this worker has decided.
    """

    _log: DecisionLog
    _furthest: dict[int, int]
    """By partition, the largest first offset of a released window, of all that was read."""

    def __init__(
        self,
        job: DeployedJob,
        noise: StageNoise,
        *,
        identifiers: Callable[[], bytes],
        wall_clock: Callable[[], int],
        broker_time: Callable[[], int | None],
        generator: np.random.Generator,
        scratch: Scratch,
        listener: WindowListener,
    ) -> None:
        super().__init__(
            job,
            1,
            noise,
            identifiers=identifiers,
            wall_clock=wall_clock,
            generator=generator,
            scratch=scratch,
            listener=listener,
        )
        self._timeline = Timeline(job, broker_time)
        self._proposed: Manifest | None = None
        self._accepted: Decision | None = None
        self._begin_logs()
        self._now = self._next_time_check = 0.0

    @abstractmethod
    def heartbeat(self) -> Mapping[str, object]:
        """See `Stage.heartbeat`."""

    @property
    @abstractmethod
    def _decision(self) -> WindowDecision[WindowT]:
        """Says when windows are decided."""

    @abstractmethod
    def _admit(self, partition: int, value: bytes) -> RecordT | Refusal:
        """A record of this job and partition, or the reason to refuse it."""

    @abstractmethod
    def _place(
        self,
        state: DecidingPartition[WindowT],
        offset: int,
        record: RecordT,
        now: float,
        written: int | None,
    ) -> Steps[Refusal | None]:
        """Put a record into its window, or say why it has none."""

    @abstractmethod
    def _new_window(self, epoch: int, now: float) -> WindowT:
        """A window of which nothing has arrived."""

    @property
    @abstractmethod
    def _known(self) -> object:
        """Changes with all that says, without a calendar, whether an epoch's time has come."""

    @property
    def _seconds_of_a_time_check(self) -> float:
        """How long looking whether windows' time has come takes, at most a tenth of the time."""
        return 0.0

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Take in one record of the raw topic."""
        self._now = now
        self._timeline.note_written(written)
        state = self._partitions[partition]
        state.position = offset + 1
        admitted = self._admit(partition, value)
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
            self._next_time_check = now + self._seconds_of_a_time_check
        for state in list(self._partitions.values()):
            self._open_silent_epochs(state, now)
            for window in list(state.windows.values()):
                if checks_time:
                    self._check_time(window, now)
                yield from self._expire(state, window, now)
            yield from self._write_owed(state)
            yield from self._commit_floor(state)

    def rests(self) -> float | None:
        """See `Stage.rests`; also of partitions of others no epoch is left out before a later one.

        Such an epoch is decided when its time has come, though no record of it may ever come.
        """
        log, decided = self._log, self._log.decided
        left_out = log.first_epoch is not None and (
            decided.first_missing(log.first_epoch) <= decided.highest
        )
        return None if left_out else super().rests()

    def unfinished(self, partition: int) -> str:
        """Epochs that are decided and not written, or not decided."""
        first = self._decision.oldest_undecided
        while first in self._log.decided or self._job.partition_of(first) != partition:
            first += 1
        state = self._partitions.get(partition)
        owed = () if state is None else state.owed
        return f"epoch {min([first, *owed])} and later ones of its partition"

    def _oldest_windows(self) -> list[WindowT]:
        windows = [w for state in self._partitions.values() for w in state.windows.values()]
        return sorted(windows, key=lambda window: window.epoch)

    def _decided_so_far(self) -> dict[str, object]:
        return Tally.after(self._manifest_log.position, self._last_manifest, self._fates).to_json()

    def _grace_left(self, window: WindowT) -> float | None:
        ends = window.grace_ends(self._job.shuffle.grace)
        return None if ends is None else max(0.0, round(ends - self._now, 1))

    def _own(self, partition: int, floor: int) -> DecidingPartition[WindowT]:
        return DecidingPartition(partition, position=floor, floor=floor)

    def _tells(self, partition: int, floor: int) -> bool:
        held = len(self._partitions) > 1
        return held and self._furthest.get(partition, -1) < floor

    def _begin_logs(self) -> None:
        self._furthest = {}
        self._fates: Counter[str] = Counter()
        self._last_manifest = b""
        self._log = DecisionLog(self._job, self._owe, self._owe_all)
        self._manifest_log = self._job.cursor(
            Role.MANIFESTS, self._read_manifest, visit_all=self._read_manifests
        )

    def _read_manifest(self, record: LogRecord) -> None:
        self._last_manifest = record.value
        self._log.apply(record)

    def _read_manifests(self, records: Sequence[LogRecord]) -> None:
        self._last_manifest = records[-1].value
        self._log.apply_all(records)

    def _owe_all(self, decisions: Decisions) -> None:
        """Many decisions were made: nearly all are finished, or lie in partitions of others."""
        rows = decisions.rows
        floor = min((state.floor for state in self._partitions.values()), default=INTEGER_MAX)
        released = rows.fates == DECIDED_FATES.index(Fate.RELEASED)
        told = released & (rows.first_offsets >= floor)
        if self._proposed is not None:
            told |= rows.epochs == self._proposed.epoch
        for fate, windows in Counter(rows.fates[~told].tolist()).items():
            self._fates[DECIDED_FATES[fate].value] += windows
        passed = released & ~told
        furthest = np.full(self._job.partitions, -1)
        np.maximum.at(
            furthest, rows.epochs[passed] % self._job.partitions, rows.first_offsets[passed]
        )
        for partition in np.flatnonzero(furthest >= 0).tolist():
            self._note_first(partition, int(furthest[partition]))
        for row in np.flatnonzero(told).tolist():
            self._owe(decisions.decision(row))

    def _owe(self, decision: Decision) -> None:
        """A decision was made: the owner of its partition owes the words.

        The floor never passes the first offset of an unfinished window, so what begins below it is
        finished.
        """
        manifest = decision.manifest
        self._fates[manifest.fate.value] += 1
        if manifest == self._proposed:
            self._accepted = decision
        if manifest.fate is not Fate.RELEASED:
            return
        partition = self._job.partition_of(manifest.epoch)
        self._note_first(partition, manifest.first_offset)
        state = self._partitions.get(partition)
        if (
            state is not None
            and manifest.first_offset >= state.floor
            and manifest.epoch not in state.written
        ):
            offset = decision.offset
            state.owed[manifest.epoch] = Owed(manifest.first_offset, offset, offset)

    def _note_first(self, partition: int, first_offset: int) -> None:
        self._furthest[partition] = max(first_offset, self._furthest.get(partition, -1))

    def _open(self, state: DecidingPartition[WindowT], epoch: int, now: float) -> WindowT:
        window = state.windows.get(epoch)
        if window is None:
            window = state.windows[epoch] = self._new_window(epoch, now)
            if self._timeline.by_calendar:
                self._check_time(window, now)
        return window

    def _count_late(self, epoch: int, reports: int, offset: int) -> None:
        """Count the reports of a record of an epoch that is decided, unless it is in."""
        outcome = self._log.recent(epoch)
        within = outcome is not None and offset < outcome.cut_offset
        if not within:
            self.counts["late_reports"] += reports

    def _check_time(self, window: WindowT, now: float) -> None:
        """Note when the time of a window has come; it is checked when anything has changed."""
        known = self._known, window.version
        if self._timeline.by_calendar or (window.due_at is None and window.checked_with != known):
            window.checked_with = known
            if not self._decision.time_has_come(window.epoch, window):
                # The calendar may have become known since, or the broker's clock set back.
                window.due_at = None
            elif window.due_at is None:
                window.due_at = now

    def _open_silent_epochs(self, state: DecidingPartition[WindowT], now: float) -> None:
        """Open the epochs of this partition without a record that are due.

        Those before a decided one, once their time has come or an operator drains them.
        """
        known = self._known, state.position
        unchanged = state.checked_with == known and not self._timeline.by_calendar
        if unchanged:
            return
        state.checked_with = known
        for epoch in self._decision.due_silent_epochs(state.number, state.position, state.windows):
            self._open(state, epoch, now)

    def _expire(
        self, state: DecidingPartition[WindowT], window: WindowT, now: float
    ) -> Steps[None]:
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
        self, state: DecidingPartition[WindowT], window: WindowT, *, as_complete: bool = False
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
            self._proposed, self._accepted = own, None
            yield Append(Role.MANIFESTS, 0, self._log.encode(own))
            yield from self._manifest_log.flush()
        decision = self._log.recent(window.epoch)
        if decision is not None:
            self.counts[f"windows {decision.fate.value}"] += 1
            accepted = self._accepted
            if own is not None and accepted is not None:
                self._listener(
                    FinishedWindow(own.epoch, own.fate, own.contributors, began=window.opened_at)
                )
                if window.epoch in state.owed and not window.set_aside:
                    yield from self._write(state, accepted, window.words)
        elif self._log.exists(window.epoch) and window.epoch not in self._log.decided:
            # So many whole ones came between that what this one names is kept by nobody any more.
            assert self._job.short_manifests, "an acknowledged manifest is in the log"
            return
        del state.windows[window.epoch]
        window.close()
        yield from self._write_owed(state)
        yield from self._commit_floor(state)
