"""Group commit: what comes within a few milliseconds is written together, and answered together.

An answer that says a report was taken is given when Kafka has acknowledged it, and never before;
nor where it was appended so late that its window may have been cut already.
How long is waited, and what a record holds, depends on when bodies come and how long they are.

It also knows which epochs a collector takes no more reports of, and has to say so.

Not at the moment in which they close, but when what was taken then is in the log, at this collector
and at all others: a report that was appended before that is below every watermark.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dpstream.pipeline.collector.intake import Intake, IntakeRules, Taken
from dpstream.pipeline.collector.responses import HttpResponse, RequestProblem, accepted
from dpstream.topics.loose_batches import LOOSE_PAYLOAD_TARGET
from dpstream.topics.names import Role

GATHER_SECONDS: Final = 0.01
"""How long the first body of a group waits for others."""
RETRY_SECONDS: Final = 5
"""After which somebody whose report could not be stored should try again."""
WRITE_SECONDS: Final = 15.0
"""After which a write has failed, for whoever waits for it."""

# An answer that comes so much later than a write can be in time still says what became of it.
_AFTERWARDS_SECONDS: Final = 1.0

Reply = Callable[[HttpResponse], None]


class WriteError(Exception):
    """Kafka has not acknowledged a record, and nobody knows whether it will be in the log."""


class Writer(Protocol):
    """Writes to the topics of a job."""

    async def write(self, topic: str, partition: int, value: bytes) -> int | None:
        """Write a record, and return when all replicas that are in sync have it.

        Returns:
            When it was appended by the broker's clock, milliseconds since 1970; None: the topic
            does not say.

        Raises:
            WriteError: that was not so in time.
        """


@dataclass(slots=True)
class Room:
    """How much may wait at a time, in all jobs together.

    Attributes:
        requests: that may wait.
        envelope_bytes: of their bodies.
    """

    requests: int = 20_000
    envelope_bytes: int = 64 << 20
    _requests: int = 0
    _bytes: int = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._requests

    def enter(self, size: int) -> bool:
        """Let a body of so many bytes wait; False: there is no room."""
        if self._requests >= self.requests or self._bytes + size > self.envelope_bytes:
            return False
        self._requests += 1
        self._bytes += size
        return True

    def leave(self, requests: int, size: int) -> None:
        """So many requests with so many bytes wait no more."""
        self._requests -= requests
        self._bytes -= size


@dataclass(slots=True)
class IntakeCounters:
    """What has become of the reports of a job, since the collector was started.

    Attributes:
        received: reports in bodies that passed the gate.
        acknowledged: reports that are in Kafka.
        refused: requests, by reason.
        records: written.
        epochs: acknowledged reports of the epochs that are open.
    """

    received: int = 0
    acknowledged: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    records: int = 0
    epochs: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Group:
    """Bodies that are written together."""

    bodies: list[bytes] = field(default_factory=list)
    subjects: list[str | None] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    size: int = 0
    row_bytes: int = 0


class Gathering:
    """The reports of one deployment on their way to Kafka; to be used in one event loop.

    Args:
        intake: of the job.
        writer: to Kafka.
        room: of all jobs.
        failed: is told of errors that nobody expected, of which the requests are answered 500.
        seconds: that the first body of a group waits.
        now: milliseconds since 1970 by the broker's clock; None: unknown.
        patience: seconds after which a write has failed.
    """

    def __init__(
        self,
        intake: Intake,
        writer: Writer,
        room: Room,
        failed: Callable[[Exception], None],
        now: Callable[[], int | None],
        seconds: float = GATHER_SECONDS,
        patience: float = WRITE_SECONDS,
    ) -> None:
        self.intake = intake
        self.tally = IntakeCounters()
        self._writer = writer
        self._room = room
        self._failed = failed
        self._now = now
        self._seconds = seconds
        self._patience = patience
        self._groups: dict[IntakeRules, _Group] = {}
        self._first_open = 0
        self._commits: dict[asyncio.Task[None], int] = {}

    def offer(
        self, body: bytes, subject: str | None, now: int, reply: Reply
    ) -> HttpResponse | None:
        """Take in a body; what is wrong with it at once, or None: `reply` is called later, once.

        Args:
            body: whole, of at most `dpstream.topics.envelopes.BODY_MAX` bytes.
            subject: of the token; None where there are none.
            now: milliseconds since 1970 by the broker's clock.
            reply: is given the answer.
        """
        answer = self._offer(body, subject, now, reply)
        if answer is not None:
            self.refuse(answer)
        return answer

    def refuse(self, answer: HttpResponse) -> None:
        """Count a refusal."""
        self.tally.refused[answer.reason or ""] += 1

    def reports(self, body: bytes) -> int:
        """How many reports there are in a body that was taken in."""
        gate = self.intake.gate(body)
        return gate.envelopes(body) if isinstance(gate, IntakeRules) else 0

    def close(self, epoch: int) -> None:
        """Take no more reports of an epoch, nor of those before it, whatever the time is."""
        self._first_open = max(self._first_open, epoch + 1)

    def _offer(
        self, body: bytes, subject: str | None, now: int, reply: Reply
    ) -> HttpResponse | None:
        gate = self.intake.gate(body)
        if isinstance(gate, HttpResponse):
            return gate
        refusal = gate.refusal(len(body), now)
        if refusal is not None:
            return refusal
        if gate.epoch < self._first_open:
            return RequestProblem.LATE.answer()
        if not self._room.enter(len(body)):
            return RequestProblem.BUSY.answer(retry_after=RETRY_SECONDS)
        envelopes = gate.envelopes(body)
        self.tally.received += envelopes
        group = self._groups.get(gate)
        if group is None:
            group = self._groups[gate] = _Group()
            loop = asyncio.get_running_loop()
            loop.call_later(self._seconds, self._seal, gate, group)
        group.bodies.append(body)
        group.subjects.append(subject)
        group.replies.append(reply)
        group.size += len(body)
        group.row_bytes += envelopes * gate.row_bytes
        if group.row_bytes >= LOOSE_PAYLOAD_TARGET:
            self._seal(gate, group)
        return None

    def is_open(self, epoch: int) -> bool:
        """Whether anything of an epoch is on its way."""
        return epoch in self._commits.values() or any(gate.epoch == epoch for gate in self._groups)

    async def finish(self) -> None:
        """Write all that waits, and wait until it has been acknowledged or has failed."""
        for gate, group in list(self._groups.items()):
            self._seal(gate, group)
        while self._commits:
            await asyncio.wait(self._commits)

    def _seal(self, gate: IntakeRules, group: _Group) -> None:
        if self._groups.get(gate) is not group:
            return
        del self._groups[gate]
        task = asyncio.get_running_loop().create_task(self._commit(gate, group))
        self._commits[task] = gate.epoch
        task.add_done_callback(self._commits.pop)

    async def _commit(self, gate: IntakeRules, group: _Group) -> None:
        answers: list[HttpResponse | None] = [None] * len(group.bodies)
        try:
            taken = self.intake.take(gate, group.bodies, group.subjects)
            answers = list(taken.refusals)
            async with asyncio.timeout(self._patience_for(gate)):
                written = await self._write(gate, taken)
        except (WriteError, TimeoutError):
            unwritten = RequestProblem.UNAVAILABLE.answer(retry_after=RETRY_SECONDS)
            answers = [answer or unwritten for answer in answers]
        except Exception as error:
            self._failed(error)
            answers = [answer or RequestProblem.INTERNAL.answer() for answer in answers]
        else:
            if written is not None and written >= gate.settles:
                # The window may have been cut before: this process was asleep, or Kafka was away.
                answers = [answer or RequestProblem.LATE.answer() for answer in answers]
            else:
                self.tally.acknowledged += taken.reports
                self.tally.epochs[gate.epoch] += taken.reports
        finally:
            self._room.leave(len(group.bodies), group.size)
        for body, answer, reply in zip(group.bodies, answers, group.replies, strict=True):
            if answer is not None:
                self.refuse(answer)
            try:
                reply(answer or accepted(gate.envelopes(body), gate.epoch))
            except Exception as error:
                # Of one client: the others are still answered.
                self._failed(error)

    def _patience_for(self, gate: IntakeRules) -> float:
        """Seconds to wait for a write: not much longer than it can be in time."""
        now = self._now()
        left = float("inf") if now is None else (gate.settles - now) / 1000
        return min(self._patience, max(0.0, left) + _AFTERWARDS_SECONDS)

    async def _write(self, gate: IntakeRules, taken: Taken) -> int | None:
        """Enrolments first: whoever reads a report finds that its device is enrolled.

        Returns:
            When the last report was appended, by the broker's clock; None: there was none.
        """
        job = self.intake.job
        await self._write_all(job.topic(Role.DEVICES), 0, taken.enrolments)
        partition = job.topics.partition_of(gate.epoch)
        return await self._write_all(job.topic(Role.REPORTS), partition, taken.batches)

    async def _write_all(self, topic: str, partition: int, records: Sequence[bytes]) -> int | None:
        if len(records) == 1:
            written = [await self._writer.write(topic, partition, records[0])]
        else:
            written = await self._write_together(topic, partition, records)
        self.tally.records += len(records)
        # A topic that does not say when is taken to have it now.
        now = self._now() or 0
        return max((now if each is None else each for each in written), default=None)

    async def _write_together(
        self, topic: str, partition: int, records: Sequence[bytes]
    ) -> list[int | None]:
        written: list[int | None] = []
        for result in await asyncio.gather(
            *(self._writer.write(topic, partition, record) for record in records),
            return_exceptions=True,
        ):
            if isinstance(result, BaseException):
                raise result
            written.append(result)
        return written


_AT_ONCE: Final = 256
"""Epochs that one look finds: after a long sleep there may be many."""


class Watermarks:
    """The epochs of a deployment, from those that are open when the collector is started.

    Args:
        intake: of the job.
        now: milliseconds since 1970 by the broker's clock.
    """

    def __init__(self, intake: Intake, now: int) -> None:
        self.intake = intake
        job = intake.job
        epoch = max(job.first_epoch, intake.times.epoch_of(now))
        while epoch > job.first_epoch and intake.settles(epoch - 1) > now:
            epoch -= 1
        self.next = epoch
        """The first epoch that nothing was said of."""

    def due(self, now: int) -> list[int]:
        """The epochs, from `next` on, that have closed by now."""
        due: list[int] = []
        last = self.intake.job.last_epoch
        epoch = self.next
        while (
            len(due) < _AT_ONCE
            and (last is None or epoch <= last)
            and self.intake.settles(epoch) <= now
        ):
            due.append(epoch)
            epoch += 1
        return due

    def said(self, epoch: int) -> None:
        """The watermark of `next` has been acknowledged."""
        self.next = epoch + 1
