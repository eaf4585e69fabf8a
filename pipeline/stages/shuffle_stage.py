"""Decide windows: collect an epoch's reports, decide once, and drop the order of the reports.

Raw records of epoch e are in partition e mod P. For each window, the stage

* collects records until its `WindowDecision` closes the window,
* writes a manifest, and reads the manifest log (`decision_log`),
* continues under the first manifest of the epoch, its own or another worker's,
* lets `window_writer` write the messages as a multiset, without key, headers, time or order,
* and only then moves the committed offset past the window's first record.

`window_states` defines the states of a window. A worker that takes over a partition starts at the
committed offset. The logs tell it which epochs to collect again and which windows to write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic

import numpy as np

from dpstream.pipeline.actions import Append, LogRecord, Steps, end_offset
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, Decisions
from dpstream.pipeline.stages.environment import Environment, FinishedWindow
from dpstream.pipeline.stages.manifest_summaries import ManifestSummary
from dpstream.pipeline.stages.raw_stage import PendingWrite, RawPartition, RawStage
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_decision import WindowDecision
from dpstream.pipeline.stages.window_source import RecordT, WindowSource, WindowT
from dpstream.pipeline.stages.window_states import Event, Reaction, after_decision
from dpstream.pipeline.stages.window_writer import WindowRelease, WindowsAgain
from dpstream.pipeline.stages.windows import PunctuationError
from dpstream.topics.frames import INTEGER_MAX
from dpstream.topics.manifests import MANIFEST_STATUSES, Manifest, WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.records import Reason

WINDOWS_SHOWN: Final = 8
NAMES_SHOWN: Final = 8
"""Maximum number of producers or collectors that a heartbeat lists for a window."""


@dataclass(slots=True)
class DecidingPartition(RawPartition[WindowT]):
    """An owned partition; `checked_with` is the state at the last search for missing epochs."""

    checked_with: object = None


class ShuffleStage(RawStage[DecidingPartition[WindowT], WindowT], Generic[WindowT, RecordT]):
    _log: DecisionLog
    _decision: WindowDecision[WindowT]
    _furthest: dict[int, int]
    """Largest first offset of the released windows read so far, by partition."""

    def __init__(
        self,
        job: DeployedJob,
        source: WindowSource[WindowT, RecordT],
        release: WindowRelease,
        environment: Environment,
    ) -> None:
        self._source = source
        super().__init__(job, 1, release, environment)
        self._timeline = Timeline(job, environment.broker_time)
        self._proposed: Manifest | None = None
        self._accepted: Decision | None = None
        self._start_logs()
        self._now = self._next_time_check = 0.0

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        self._now = now
        self._timeline.note_written(written)
        state = self._partitions[partition]
        state.position = offset + 1
        admitted = self._source.admit(partition, value)
        rejection = (
            admitted
            if isinstance(admitted, Rejection)
            else (yield from self._place(state, offset, admitted, now, written))
        )
        if rejection is not None:
            yield from self._reject(state, offset, value, rejection)
        for window in list(state.windows.values()):
            yield from self._decide_if_read(state, window)

    def tick(self, now: float) -> Steps[None]:
        self._now = now
        if not self._partitions:
            return
        yield from self._source.look(now)
        yield from self._catch_up()
        self._bound_memory()
        checks_time = self._timeline.by_calendar or now >= self._next_time_check
        if checks_time:
            self._next_time_check = now + self._source.seconds_of_a_time_check
        for state in list(self._partitions.values()):
            self._open_epochs_without_records(state, now)
            for window in list(state.windows.values()):
                if checks_time:
                    self._check_time(window, now)
                yield from self._react(state, window, now)
            yield from self._write_pending(state)
            yield from self._commit_floor(state)

    def idle_seconds(self) -> float | None:
        """See `Stage.idle_seconds`; also None if an epoch before a decided one is undecided."""
        log, decided = self._log, self._log.decided
        left_out = log.first_epoch is not None and (
            decided.first_missing(log.first_epoch) <= decided.highest
        )
        if left_out or super().idle_seconds() is None:
            return None
        return self._source.idle_seconds()

    def unfinished(self, partition: int) -> str:
        first = self._decision.oldest_undecided
        while first in self._log.decided or self._job.topics.partition_of(first) != partition:
            first += 1
        state = self._partitions.get(partition)
        pending = () if state is None else state.pending
        return f"epoch {min([first, *pending])} and later epochs of its partition"

    def heartbeat(self) -> dict[str, object]:
        """Return open windows (oldest first), the senders they wait for, and all counters.

        ``ahead`` lists producers that send epochs before the epochs' time has come.

        If devices rely on this stage to hide their messages (``hides_messages``), the number of
        messages must not be visible before a window is released. ``reports`` and ``late_reports``
        in ``counts`` are then numbers of devices, which are public.
        """
        open_windows = [w for state in self._partitions.values() for w in state.windows.values()]
        windows = sorted(open_windows, key=lambda window: window.epoch)
        return {
            "hides_messages": self._hides_messages,
            "open_windows": len(windows),
            "windows": [
                {
                    "epoch": window.epoch,
                    **self._source.arrived(window),
                    "grace_left": self._grace_left(window),
                    "waits_for": [*islice(self._source.awaited(window), NAMES_SHOWN)],
                }
                for window in windows[:WINDOWS_SHOWN]
            ],
            "ahead": [
                {"producer": each.producer, "epochs": each.epochs}
                for each in islice(self._timeline.ahead(self._registry, self._log), NAMES_SHOWN)
            ],
            "finalized": ManifestSummary.after(
                self._manifest_log.position, self._last_manifest, self._windows_by_status
            ).to_json(),
            "counts": dict(self.counts),
        }

    def _windows_again(self) -> WindowsAgain:
        return self._source.windows_again(self._registry, self._multiset)

    def _grace_left(self, window: WindowT) -> float | None:
        ends = window.grace_ends(self._job.shuffle.grace)
        return None if ends is None else max(0.0, round(ends - self._now, 1))

    def _own(self, partition: int, floor: int) -> DecidingPartition[WindowT]:
        return DecidingPartition(partition, position=floor, floor=floor)

    def _tells(self, partition: int, floor: int) -> bool:
        owns_others = len(self._partitions) > 1
        return owns_others and self._furthest.get(partition, -1) < floor

    def _start_logs(self) -> None:
        self._furthest = {}
        self._windows_by_status: Counter[str] = Counter()
        self._last_manifest = b""
        self._log = DecisionLog(self._job, self._schedule_write, self._schedule_writes)
        self._decision = self._source.begin(self._registry, self._log, self._timeline)
        self._manifest_log = self._job.cursor(
            Role.MANIFESTS, self._read_manifest, visit_all=self._read_manifests
        )

    def _read_manifest(self, record: LogRecord) -> None:
        self._last_manifest = record.value
        self._log.apply(record)

    def _read_manifests(self, records: Sequence[LogRecord]) -> None:
        self._last_manifest = records[-1].value
        self._log.apply_all(records)

    def _schedule_writes(self, decisions: Decisions) -> None:
        """Process many decisions, most of which need no write by this worker."""
        rows = decisions.rows
        floor = min((state.floor for state in self._partitions.values()), default=INTEGER_MAX)
        released = rows.statuses == MANIFEST_STATUSES.index(WindowStatus.RELEASED)
        scheduled = released & (rows.first_offsets >= floor)
        if self._proposed is not None:
            scheduled |= rows.epochs == self._proposed.epoch
        for window_status, windows in Counter(rows.statuses[~scheduled].tolist()).items():
            self._windows_by_status[MANIFEST_STATUSES[window_status].value] += windows
        passed = released & ~scheduled
        furthest = np.full(self._job.topics.partitions, -1)
        np.maximum.at(
            furthest, rows.epochs[passed] % self._job.topics.partitions, rows.first_offsets[passed]
        )
        for partition in np.flatnonzero(furthest >= 0).tolist():
            self._note_first(partition, int(furthest[partition]))
        for row in np.flatnonzero(scheduled).tolist():
            self._schedule_write(decisions.decision(row))

    def _schedule_write(self, decision: Decision) -> None:
        """Schedule a decision's window; windows below the committed offset are finished."""
        manifest = decision.manifest
        self._windows_by_status[manifest.window_status.value] += 1
        if manifest == self._proposed:
            self._accepted = decision
        if after_decision(manifest.window_status) is not Reaction.WRITE:
            return
        partition = self._job.topics.partition_of(manifest.epoch)
        self._note_first(partition, manifest.first_offset)
        state = self._partitions.get(partition)
        if (
            state is not None
            and manifest.first_offset >= state.floor
            and manifest.epoch not in state.written
        ):
            offset = decision.offset
            state.pending[manifest.epoch] = PendingWrite(manifest.first_offset, offset, offset)

    def _note_first(self, partition: int, first_offset: int) -> None:
        self._furthest[partition] = max(first_offset, self._furthest.get(partition, -1))

    def _place(
        self,
        state: DecidingPartition[WindowT],
        offset: int,
        record: RecordT,
        now: float,
        written: int | None,
    ) -> Steps[Rejection | None]:
        source, epoch = self._source, record.epoch
        if not source.knows_sender(record):
            yield from self._producer_log.catch_up()
        if self._decision.too_far_ahead(epoch) is not None:
            # Other workers might have decided epochs whose manifests this one has not read.
            yield from self._manifest_log.catch_up()
        if epoch in self._log.decided:
            source.note(record)
            self._count_late(epoch, source.size(record), offset)
            return None
        rejection = self._unexpected(record, written)
        if rejection is not None:
            return rejection
        source.note(record)
        window = self._open(state, epoch, now)
        window.note_record(offset, now)
        try:
            self.counts.update(source.add(window, record))
        except PunctuationError as error:
            return Rejection(Reason.PUNCTUATION, str(error))
        if source.may_complete(window, record) and self._decision.complete(window):
            yield from self._decide(state, window, as_complete=True)
        return None

    def _unexpected(self, record: RecordT, written: int | None) -> Rejection | None:
        rejection = self._source.rejection(record)
        if rejection is not None:
            return rejection
        oldest = self._decision.oldest_undecided
        if record.epoch < oldest:
            return Rejection(Reason.EPOCH, f"epoch {record.epoch} precedes the first one, {oldest}")
        problem = self._timeline.early(record.epoch, written) or self._decision.too_far_ahead(
            record.epoch
        )
        return None if problem is None else self._source.ahead_of_time(record, problem)

    def _open(self, state: DecidingPartition[WindowT], epoch: int, now: float) -> WindowT:
        window = state.windows.get(epoch)
        if window is None:
            window = self._source.new_window(epoch, now, self._multiset)
            state.windows[epoch] = window
            if self._timeline.by_calendar:
                self._check_time(window, now)
        return window

    def _count_late(self, epoch: int, reports: int, offset: int) -> None:
        outcome = self._log.recent(epoch)
        within = outcome is not None and offset < outcome.cut_offset
        if not within:
            self.counts["late_reports"] += reports

    def _check_time(self, window: WindowT, now: float) -> None:
        """Note whether the window's epoch has ended; checked only after a relevant change."""
        known = self._known, window.version
        if self._timeline.by_calendar or (window.due_at is None and window.checked_with != known):
            window.checked_with = known
            come = self._decision.time_has_come(window.epoch, window)
            match window.happens(Event.TIME_HAS_COME if come else Event.TIME_WITHDRAWN):
                case Reaction.START_GRACE:
                    window.due_at = now
                case Reaction.STOP_GRACE:
                    window.due_at = None

    @property
    def _known(self) -> object:
        """Value that changes whenever, without a calendar, other epochs might have ended."""
        return self._manifest_log.position, self._source.known

    def _open_epochs_without_records(self, state: DecidingPartition[WindowT], now: float) -> None:
        known = self._known, state.position
        unchanged = state.checked_with == known and not self._timeline.by_calendar
        if unchanged:
            return
        state.checked_with = known
        for epoch in self._decision.due_epochs_without_records(
            state.number, state.position, state.windows
        ):
            self._open(state, epoch, now)

    def _react(self, state: DecidingPartition[WindowT], window: WindowT, now: float) -> Steps[None]:
        event = self._decision.event(window, state.position, now)
        match None if event is None else window.happens(event):
            case Reaction.DECIDE:
                yield from self._decide(state, window)
            case Reaction.DECIDE_IF_COMPLETE:
                yield from self._decide(state, window, as_complete=True)
            case Reaction.FORGET:
                del state.windows[window.epoch]
                window.close()
            case Reaction.FIND_END:
                window.closing_end = yield from end_offset(Role.REPORTS, state.number)
                yield from self._decide_if_read(state, window)

    def _decide_if_read(self, state: DecidingPartition[WindowT], window: WindowT) -> Steps[None]:
        """Decide a closing window once all records before its `closing_end` are read."""
        if window.closing_end is not None and state.position >= window.closing_end:
            window.happens(Event.READ_TO_END)
            yield from self._decide(state, window)

    def _decide(
        self, state: DecidingPartition[WindowT], window: WindowT, *, as_complete: bool = False
    ) -> Steps[None]:
        """Finalize an epoch, and write its window.

        First, the logs of expected senders are read to their ends: a window decided `as_complete`
        stays open if a producer has registered in the meantime.
        """
        own: Manifest | None = None
        yield from self._source.before_decision()
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
            self.counts[f"windows {decision.window_status.value}"] += 1
            self.counts.update(self._source.counts(window))
            accepted = self._accepted
            if own is not None and accepted is not None:
                self._listener(
                    FinishedWindow(
                        own.epoch, own.window_status, own.contributors, began=window.opened_at
                    )
                )
                if window.epoch in state.pending and not window.set_aside:
                    yield from self._write(state, accepted, window.words)
        elif self._log.exists(window.epoch) and window.epoch not in self._log.decided:
            # The manifest was skipped: its base is no longer among the latest whole manifests.
            assert self._job.short_manifests, "an acknowledged manifest is in the log"
            return
        del state.windows[window.epoch]
        window.close()
        yield from self._write_pending(state)
        yield from self._commit_floor(state)
