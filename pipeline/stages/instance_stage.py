"""A shuffle instance beside the first one: it decides nothing, and writes its part of each window.

Every message of an epoch goes to one of several shuffle instances, at random; each has a topic of
its own, and who runs one sees a share of what a device sends. `ShuffleStage` is the first of them,
and its manifest is the decision for all: which producers are in, and by which drawing. A producer
sends the first instance its part when the others have theirs. So whoever is in has everything
in the topic of every instance when the manifest is in the log; an instance that has read its topic
up to where it ended then has all there is to wait for.

What the others wait for may not depend on that: if somebody sends one instance less than the other,
what is missing is missing. Then it must at least be the same whenever a part is written. Therefore
an instance writes a manifest of its own before its part, which names the decision, or is a copy of
it, with the offsets of its own topic; it goes on under the first one of its kind, and everything
after that is a function of the log.

The lanes of an epoch are parts like these, of one instance: they lie in partitions of one topic,
and whoever owns the partition of one that is not the first does the same with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.actions import (
    Append,
    Flush,
    LogRecord,
    Steps,
    end_offset,
)
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import EPOCHS_AHEAD
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.jobs.sealed import stage_party
from pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from pipeline.stages.admission import Admission, Refusal
from pipeline.stages.boxes_of_windows import check_keys
from pipeline.stages.decision_log import Decision, DecisionLog, manifest_at
from pipeline.stages.drawings import holds_decided
from pipeline.stages.finished_windows import FinishedWindow, WindowListener, ignore_window
from pipeline.stages.multisets import WordMultiset
from pipeline.stages.part_log import PartLog, PartPlace
from pipeline.stages.raw_stage import Owed, RawPartition, RawStage
from pipeline.stages.scratch import Scratch, temporary_file
from pipeline.stages.stage_noise import StageNoise
from pipeline.stages.window_writer import ProducerWindows
from pipeline.stages.windows import PunctuationError, Window, public_size
from topics.batches import Batch, Punctuation
from topics.manifest_parts import Part, encode_part
from topics.manifests import Fate, Manifest, encode_manifest
from topics.names import Role
from topics.records import Reason

# The first instance refuses what is further ahead than `EPOCHS_AHEAD`, by what is decided when it
# looks. This one may look earlier, and must not refuse what the first one takes.
_EPOCHS_AHEAD = 2 * EPOCHS_AHEAD


@dataclass(slots=True)
class _Partition(RawPartition[Window]):
    """What the stage knows of a partition it owns; what is owed are manifests of this instance.

    Attributes:
        decided: released epochs of which this instance has no manifest yet, and where it is said.
        ends: where the partition ended when that was known of an epoch of `decided`.
    """

    decided: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


class InstanceStage(RawStage[_Partition, Window]):
    """Turns the batches of ``<job>.reports-2`` and so on into chunks of ``<job>.shuffled``.

    Args:
        job: with several shuffle instances, or lanes.
        instance: which one, from 2 on; 1 has all lanes but the first.
        identifiers: makes the random 16-byte ids of attempts.
        wall_clock: milliseconds since 1970, for the manifests' timestamps.
        generator: cryptographic generator for ``order: random``.
        scratch: opens scratch files for windows whose words do not fit a table of counts.
        noise_key: for jobs in lanes that ask the stage for dummies.
        keys: of this instance, where reports are sealed.
        listener: is told of every window whose part this worker has written.

    Raises:
        NoiseKeyError: the job asks for dummies, and this is not the key it was deployed with.
        SealingKeyError: reports are sealed, and the instance's private keys are not there.
    """

    def __init__(
        self,
        job: DeployedJob,
        instance: int,
        *,
        identifiers: Callable[[], bytes],
        wall_clock: Callable[[], int],
        generator: np.random.Generator,
        scratch: Scratch = temporary_file,
        noise_key: NoiseKey | None = None,
        keys: KeyRing = NO_KEYS,
        listener: WindowListener = ignore_window,
    ) -> None:
        if job.seals_batches:
            check_keys(job, stage_party(instance - 1), keys)
        others = job.lanes > 1
        self._admission = Admission(job, keys, job.report_roles[instance - 1], others=others)
        self._numbers = range(2, job.lanes + 1) if others else range(instance, instance + 1)
        super().__init__(
            job,
            instance,
            StageNoise(job, noise_key),
            identifiers=identifiers,
            wall_clock=wall_clock,
            generator=generator,
            scratch=scratch,
            listener=listener,
        )
        self._proposed = b""
        self._accepted = False
        self._begin_logs()

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Take in one record of the instance's topic."""
        state = self._partitions[partition]
        state.position = offset + 1
        for each in self._admission.records(partition, value):
            admitted = self._admission.admit(partition, each)
            refusal = (
                admitted
                if isinstance(admitted, Refusal)
                else (yield from self._place(state, offset, admitted, now))
            )
            if refusal is not None:
                yield from self._refuse(state, offset, each, refusal)
        yield from self._write_what_is_read(state)

    def tick(self, now: float) -> Steps[None]:
        """Notice what was decided; write what is read, and commit the floor."""
        if not self._partitions:
            return
        yield from self._catch_up()
        self._bound_memory()
        for state in list(self._partitions.values()):
            for epoch in state.decided.keys() - state.ends.keys():
                # Whoever is in has been acknowledged before it was decided: it lies below.
                state.ends[epoch] = yield from end_offset(self.role, state.number)
            yield from self._write_what_is_read(state)
            yield from self._write_owed(state)
            for epoch in list(state.windows):
                if self._through(state, epoch) or not self._decisions.exists(epoch):
                    self._forget(state, epoch)
            yield from self._commit_floor(state)

    def rests(self) -> float | None:
        """See `Stage.rests`; also of partitions of others every part has a manifest."""
        return None if self._released > self._said else super().rests()

    def unfinished(self, partition: int) -> str:
        """Epochs whose part is not written, or not decided."""
        first = self._oldest_undecided
        while first in self._decisions.decided or self._number(first, partition) is None:
            first += 1
        state = self._partitions.get(partition)
        begun = () if state is None else (*state.decided, *state.owed)
        return f"epoch {min([first, *begun])} and later ones of its partition"

    def _windows_again(self) -> ProducerWindows:
        return ProducerWindows(self._job, self._admission, self._roster, self._multiset, self.role)

    def heartbeat(self) -> dict[str, object]:
        """What has been counted so far, and how many windows are not written yet."""
        return {
            "hides_messages": self._hides_messages,
            "open_windows": sum(len(state.windows) for state in self._partitions.values()),
            "counts": dict(self.counts),
        }

    def _own(self, partition: int, floor: int) -> _Partition:
        return _Partition(partition, position=floor, floor=floor)

    def _begin_logs(self) -> None:
        self._decisions = DecisionLog(self._job, self._decide)
        self._parts = PartLog(self._job, self._decisions, self._numbers, self._owe)
        self._released = self._said = 0
        self._manifest_log = self._job.cursor(Role.MANIFESTS, self._apply)

    def _apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        self._decisions.apply(record)
        self._parts.apply(record)

    def _decide(self, decision: Decision) -> None:
        """A window was decided: if it is released, there are parts to be written."""
        epoch = decision.manifest.epoch
        if decision.manifest.fate is not Fate.RELEASED:
            return
        self._released += len(self._numbers)
        for number in self._numbers:
            state = self._partitions.get(self._job.partition_of(epoch, number))
            if state is not None:
                state.decided[epoch] = decision.offset

    def _owe(self, part: PartPlace, record: LogRecord) -> None:
        """It was said what a part is, and the first word counts: the partition's owner owes it.

        The floor never passes the first offset of an unfinished part, so what begins below it is
        finished.
        """
        epoch = part.epoch
        self._said += 1
        if record.value == self._proposed:
            self._accepted = True
        state = self._partitions.get(self._job.partition_of(epoch, part.instance))
        decision = None if state is None else state.decided.pop(epoch, None)
        if state is None or decision is None:
            return
        state.ends.pop(epoch, None)
        if part.first_offset >= state.floor and epoch not in state.written:
            state.owed[epoch] = Owed(part.first_offset, record.offset, decision)

    def _number(self, epoch: int, partition: int) -> int | None:
        """Which part of an epoch a partition of this stage has; None if it has none."""
        for number in self._numbers:
            if self._job.partition_of(epoch, number) == partition:
                return number
        return None

    @property
    def _oldest_undecided(self) -> int:
        return self._decisions.oldest_undecided(self._roster.first_epoch)

    def _place(
        self, state: _Partition, offset: int, record: Batch | Punctuation, now: float
    ) -> Steps[Refusal | None]:
        """Put a record into its window, or say why it has none.

        What the first instance takes must not be refused here, where it is seen at another time: so
        nothing is asked of calendars, nor whether a producer has been retired.
        """
        if self._roster.find(record.enrolment) is None:
            yield from self._producer_log.catch_up()
        if record.epoch > self._oldest_undecided + _EPOCHS_AHEAD:
            yield from self._manifest_log.catch_up()
        if self._through(state, record.epoch):
            return None
        refusal = self._unexpected(record)
        if refusal is not None:
            return refusal
        window = state.windows.get(record.epoch)
        if window is None:
            window = state.windows[record.epoch] = Window(record.epoch, now, self._multiset)
        window.note_record(offset, now)
        try:
            new = window.add(record)
        except PunctuationError as error:
            return Refusal(Reason.PUNCTUATION, str(error))
        if new:
            self.counts["reports"] += public_size(record, hides_messages=self._hides_messages)
        return None

    def _through(self, state: _Partition, epoch: int) -> bool:
        """Whether an epoch's records are not collected: decided, and its part has a manifest."""
        return epoch in self._decisions.decided and epoch not in state.decided

    def _unexpected(self, record: Batch | Punctuation) -> Refusal | None:
        producer = self._roster.find(record.enrolment)
        if producer is None:
            return Refusal(Reason.ENROLMENT, "nobody registered (first) under this enrolment id")
        if record.epoch < producer.first_epoch:
            return Refusal(
                Reason.ENROLMENT,
                f"the producer is registered from epoch {producer.first_epoch} on, this is epoch "
                f"{record.epoch}",
            )
        if not self._decisions.exists(record.epoch):
            return Refusal(Reason.EPOCH, "this deployment begins with a later epoch")
        if record.epoch > self._oldest_undecided + _EPOCHS_AHEAD:
            return Refusal(
                Reason.EPOCH,
                f"epoch {record.epoch} lies more than {_EPOCHS_AHEAD} epochs ahead of the oldest "
                f"open one, {self._oldest_undecided}",
            )
        return None

    def _write_what_is_read(self, state: _Partition) -> Steps[None]:
        """Say what the part is of windows that are all there, and write it."""
        for epoch in sorted(each for each, end in state.ends.items() if state.position >= end):
            if epoch in state.ends:
                yield from self._write_part(state, epoch)

    def _write_part(self, state: _Partition, epoch: int) -> Steps[None]:
        window = state.windows.get(epoch)
        first = None if window is None else window.first_offset
        number, decided_at = self._number(epoch, state.number), state.decided[epoch]
        assert number is not None
        own = replace(
            (yield from manifest_at(self._job, decided_at)),
            instance=number,
            first_offset=state.position if first is None else first,
            cut_offset=state.position,
            timestamp=self._wall_clock(),
        )
        self._proposed, self._accepted = self._encode(own, decided_at), False
        yield Append(Role.MANIFESTS, 0, self._proposed)
        yield Flush()
        yield from self._catch_up()
        if epoch in state.owed and self._accepted and window is not None:
            self._listener(
                FinishedWindow(epoch, own.fate, own.contributors, began=window.opened_at)
            )
            if not window.set_aside and holds_decided(window, own, self._roster):
                yield from self._write(state, Decision(own, decided_at), window.words)
        self._forget(state, epoch)
        yield from self._write_owed(state)
        yield from self._commit_floor(state)

    def _encode(self, part: Manifest, decided_at: int) -> bytes:
        """The record of a part: a copy of the decision, or its offset."""
        if not self._job.drawing_codes:
            return encode_manifest(part)
        return encode_part(
            Part(
                part.fingerprint,
                part.deployment,
                part.epoch,
                part.first_offset,
                part.cut_offset,
                part.timestamp,
                part.instance,
                decided_at,
            )
        )

    def _write(self, state: _Partition, decision: Decision, words: WordMultiset) -> Steps[None]:
        yield from super()._write(state, decision, words)
        self.counts["windows"] += 1

    def _forget(self, state: _Partition, epoch: int) -> None:
        window = state.windows.pop(epoch, None)
        if window is not None:
            window.close()
