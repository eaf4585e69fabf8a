"""Parallel shufflers after the first: they write partial windows, which the first one decides.

Every message of an epoch goes to one of several shufflers, chosen at random. Each shuffler has its
own topic, so its operator sees only a fraction of a device's messages. The first shuffler, a
`ShuffleStage`, decides for all: its manifest lists the producers in the window and their draws.

* A producer sends its messages to the first shuffler last. Once the first shuffler's manifest is in
  the log, every topic therefore has all records of the producers in the window.
* A shuffler writes its own manifest before its partial window: a copy of the decision with offsets
  in its own topic. All writes of the partial window then have the same content, even if a producer
  omitted a record that arrives later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dpstream.pipeline.actions import (
    Append,
    Flush,
    LogRecord,
    Steps,
    end_offset,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.pipeline.stages.decision_log import (
    Decision,
    DecisionLog,
    manifest_at,
    own_partial_window,
)
from dpstream.pipeline.stages.environment import Environment, FinishedWindow
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.raw_stage import PendingWrite, RawPartition, RawStage
from dpstream.pipeline.stages.window_writer import ProducerWindows, WindowRelease, drawings_in
from dpstream.pipeline.stages.windows import PunctuationError, Window, public_size
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import Role
from dpstream.topics.records import Reason

# The first shuffler rejects epochs more than `EPOCHS_AHEAD` ahead of the decisions it has read.
# This shuffler may have read fewer decisions, and must not reject what the first one accepts.
_EPOCHS_AHEAD = 2 * EPOCHS_AHEAD


@dataclass(slots=True)
class _InstancePartition(RawPartition[Window]):
    """State of an owned partition; pending writes refer to manifests of this shuffler.

    `decided` has the offsets of decisions for released epochs without a manifest of this shuffler,
    and `ends` the partition's end after each of these decisions.
    """

    decided: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


class InstanceStage(RawStage[_InstancePartition, Window]):
    def __init__(
        self,
        job: DeployedJob,
        instance: int,
        admission: Admission,
        release: WindowRelease,
        environment: Environment,
    ) -> None:
        self._admission = admission
        self._instance = instance
        super().__init__(job, instance, release, environment)
        self._proposed: Manifest | None = None
        self._accepted = False
        self._start_logs()

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        state = self._partitions[partition]
        state.position = offset + 1
        admitted = self._admission.admit(partition, value)
        rejection = (
            admitted
            if isinstance(admitted, Rejection)
            else (yield from self._place(state, offset, admitted, now))
        )
        if rejection is not None:
            yield from self._reject(state, offset, value, rejection)
        yield from self._write_what_is_read(state)

    def tick(self, now: float) -> Steps[None]:
        if not self._partitions:
            return
        yield from self._catch_up()
        self._bound_memory()
        for state in list(self._partitions.values()):
            for epoch in state.decided.keys() - state.ends.keys():
                # Records of producers in the window were acknowledged before the decision, and are
                # therefore below this end offset.
                state.ends[epoch] = yield from end_offset(self.role, state.number)
            yield from self._write_what_is_read(state)
            yield from self._write_pending(state)
            for epoch in list(state.windows):
                if self._through(state, epoch) or not self._decisions.exists(epoch):
                    self._drop(state, epoch)
            yield from self._commit_floor(state)

    def idle_seconds(self) -> float | None:
        """See `Stage.idle_seconds`; also None while a partial window has no manifest."""
        return None if self._released > self._declared else super().idle_seconds()

    def unfinished(self, partition: int) -> str:
        first = self._oldest_undecided
        while first in self._decisions.decided or self._job.topics.partition_of(first) != partition:
            first += 1
        state = self._partitions.get(partition)
        begun = () if state is None else (*state.decided, *state.pending)
        return f"epoch {min([first, *begun])} and later epochs of its partition"

    def _windows_again(self) -> ProducerWindows:
        return ProducerWindows(
            self._job, self._admission, self._registry, self._multiset, self.role
        )

    def heartbeat(self) -> dict[str, object]:
        return {
            "hides_messages": self._hides_messages,
            "open_windows": sum(len(state.windows) for state in self._partitions.values()),
            "counts": dict(self.counts),
        }

    def _own(self, partition: int, floor: int) -> _InstancePartition:
        return _InstancePartition(partition, position=floor, floor=floor)

    def _start_logs(self) -> None:
        self._decisions = DecisionLog(self._job, self._decide)
        self._partial_windows = EpochSet()
        self._released = self._declared = 0
        self._manifest_log = self._job.cursor(Role.MANIFESTS, self._apply)

    def _apply(self, record: LogRecord) -> None:
        self._decisions.apply(record)
        partial_window = own_partial_window(self._job, self._instance, record)
        if partial_window is not None:
            self._schedule_write(partial_window, record.offset)

    def _decide(self, decision: Decision) -> None:
        epoch = decision.manifest.epoch
        if decision.manifest.window_status is not WindowStatus.RELEASED:
            return
        self._released += 1
        state = self._partitions.get(self._job.topics.partition_of(epoch))
        if state is not None:
            state.decided[epoch] = decision.offset

    def _schedule_write(self, partial_window: Manifest, offset: int) -> None:
        """Schedule the write of a partial window if this worker owns its partition.

        The committed offset never passes an unfinished partial window, so one that starts below it
        is already written.
        """
        epoch = partial_window.epoch
        if epoch not in self._decisions.decided or not self._partial_windows.add(epoch):
            return
        self._declared += 1
        if partial_window == self._proposed:
            self._accepted = True
        state = self._partitions.get(self._job.topics.partition_of(epoch))
        decision = None if state is None else state.decided.pop(epoch, None)
        if state is None or decision is None:
            return
        state.ends.pop(epoch, None)
        if partial_window.first_offset >= state.floor and epoch not in state.written:
            state.pending[epoch] = PendingWrite(partial_window.first_offset, offset, decision)

    @property
    def _oldest_undecided(self) -> int:
        return self._decisions.oldest_undecided(self._registry.first_epoch)

    def _place(
        self, state: _InstancePartition, offset: int, record: Batch | Punctuation, now: float
    ) -> Steps[Rejection | None]:
        """Add a record to its window, or return why it is rejected.

        A record that the first shuffler accepts must not be rejected here, even if it is read at
        another time. The calendar and the retirement of producers are therefore not checked.
        """
        if self._registry.find(record.enrollment) is None:
            yield from self._producer_log.catch_up()
        if record.epoch > self._oldest_undecided + _EPOCHS_AHEAD:
            yield from self._manifest_log.catch_up()
        if self._through(state, record.epoch):
            return None
        rejection = self._unexpected(record)
        if rejection is not None:
            return rejection
        window = state.windows.get(record.epoch)
        if window is None:
            window = state.windows[record.epoch] = Window(record.epoch, now, self._multiset)
        window.note_record(offset, now)
        try:
            new = window.add(record)
        except PunctuationError as error:
            return Rejection(Reason.PUNCTUATION, str(error))
        if new:
            self.counts["reports"] += public_size(record, hides_messages=self._hides_messages)
        return None

    def _through(self, state: _InstancePartition, epoch: int) -> bool:
        """Return whether an epoch is decided, and its partial window has a manifest."""
        return epoch in self._decisions.decided and epoch not in state.decided

    def _unexpected(self, record: Batch | Punctuation) -> Rejection | None:
        producer = self._registry.find(record.enrollment)
        if producer is None:
            return Rejection(
                Reason.ENROLLMENT,
                "no producer is registered under this enrollment id, or its name was already taken",
            )
        if record.epoch < producer.first_epoch:
            return Rejection(
                Reason.ENROLLMENT,
                f"the producer is registered from epoch {producer.first_epoch}, but this is "
                f"epoch {record.epoch}",
            )
        if not self._decisions.exists(record.epoch):
            return Rejection(Reason.EPOCH, f"epoch {record.epoch} precedes the first epoch")
        if record.epoch > self._oldest_undecided + _EPOCHS_AHEAD:
            return Rejection(
                Reason.EPOCH,
                f"epoch {record.epoch} is more than {_EPOCHS_AHEAD} epochs ahead of the oldest "
                f"open epoch, {self._oldest_undecided}",
            )
        return None

    def _write_what_is_read(self, state: _InstancePartition) -> Steps[None]:
        """Write the manifest and the partial window of every window that is read completely."""
        for epoch in sorted(each for each, end in state.ends.items() if state.position >= end):
            if epoch in state.ends:
                yield from self._write_partial_window(state, epoch)

    def _write_partial_window(self, state: _InstancePartition, epoch: int) -> Steps[None]:
        window = state.windows.get(epoch)
        first = None if window is None else window.first_offset
        decided_at = state.decided[epoch]
        own = replace(
            (yield from manifest_at(self._job, decided_at)),
            instance=self._instance,
            first_offset=state.position if first is None else first,
            cut_offset=state.position,
            timestamp=self._wall_clock(),
        )
        self._proposed, self._accepted = own, False
        yield Append(Role.MANIFESTS, 0, encode_manifest(own))
        yield Flush()
        yield from self._catch_up()
        if epoch in state.pending and self._accepted and window is not None:
            self._listener(
                FinishedWindow(epoch, own.window_status, own.contributors, began=window.opened_at)
            )
            if self._holds(window, own):
                yield from self._write(state, Decision(own, decided_at), window.words)
        self._drop(state, epoch)
        yield from self._write_pending(state)
        yield from self._commit_floor(state)

    def _holds(self, window: Window, partial_window: Manifest) -> bool:
        complete = {
            enrollment: contribution.complete.drawing
            for enrollment, contribution in window.contributions.items()
            if contribution.complete is not None
        }
        return not window.set_aside and complete == drawings_in(partial_window, self._registry)

    def _write(
        self, state: _InstancePartition, decision: Decision, words: MessageMultiset
    ) -> Steps[None]:
        yield from super()._write(state, decision, words)
        self.counts["windows"] += 1

    def _drop(self, state: _InstancePartition, epoch: int) -> None:
        window = state.windows.pop(epoch, None)
        if window is not None:
            window.close()
