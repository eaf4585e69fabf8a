"""Group commit: reports that arrive within a few milliseconds are written and answered together.

* A report is confirmed only after Kafka has acknowledged it. A report is not confirmed if it was
  appended so late that its window might have been finalized.
* The waiting time and the size of a record depend only on the arrival times and lengths of request
  bodies.
* A watermark declares that a collector accepts no more reports for an epoch. The watermark is
  written some time after the epoch closes, when all reports that collectors have accepted are in
  the log. These reports therefore precede every watermark.
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
"""Seconds for which the first body in a group waits for further bodies."""
RETRY_SECONDS: Final = 5
"""Seconds after which a device should resend a report that could not be stored."""
WRITE_SECONDS: Final = 15.0
"""Seconds after which a write counts as failed for the requests that depend on it."""

# Additional seconds to wait for a late write, so that the response can state the outcome.
_AFTERWARDS_SECONDS: Final = 1.0

Reply = Callable[[HttpResponse], None]


class WriteError(Exception):
    """Kafka has not acknowledged a record; it might still append the record to the log."""


class Writer(Protocol):
    async def write(self, topic: str, partition: int, value: bytes) -> int | None:
        """Write a record, and return once all in-sync replicas have the record.

        Returns the time of the append by the broker's clock, milliseconds since 1970; None if the
        topic does not record it. Raises WriteError if the replicas have not acknowledged the record
        in time.
        """


@dataclass(slots=True)
class IntakeCapacity:
    requests: int = 20_000
    envelope_bytes: int = 64 << 20
    _requests: int = 0
    _bytes: int = 0

    @property
    def waiting(self) -> int:
        return self._requests

    def enter(self, size: int) -> bool:
        """Count a waiting body of `size` bytes; return False if capacity is lacking."""
        if self._requests >= self.requests or self._bytes + size > self.envelope_bytes:
            return False
        self._requests += 1
        self._bytes += size
        return True

    def leave(self, requests: int, size: int) -> None:
        self._requests -= requests
        self._bytes -= size


@dataclass(slots=True)
class IntakeCounters:
    """Counters of a job's reports since the collector started.

    `received` counts reports that passed the intake rules, and `acknowledged` counts reports stored
    in Kafka. `rejected` counts rejected requests by reason, and `epochs` acknowledged reports by
    open epoch.
    """

    received: int = 0
    acknowledged: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    records: int = 0
    epochs: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Group:
    bodies: list[bytes] = field(default_factory=list)
    subjects: list[str | None] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    size: int = 0
    row_bytes: int = 0


class BatchWriter:
    """Write the reports of one deployment to Kafka in batches, within one event loop.

    `now` returns milliseconds since 1970 by the broker's clock; None if unknown. After an
    unexpected error, `failed` is called, and the requests are answered with status 500.
    """

    def __init__(
        self,
        intake: Intake,
        writer: Writer,
        capacity: IntakeCapacity,
        failed: Callable[[Exception], None],
        now: Callable[[], int | None],
        seconds: float = GATHER_SECONDS,
        timeout: float = WRITE_SECONDS,
    ) -> None:
        self.intake = intake
        self.counters = IntakeCounters()
        self._writer = writer
        self._capacity = capacity
        self._failed = failed
        self._now = now
        self._seconds = seconds
        self._timeout = timeout
        self._groups: dict[IntakeRules, _Group] = {}
        self._first_open = 0
        self._commits: dict[asyncio.Task[None], int] = {}

    def offer(
        self, body: bytes, subject: str | None, now: int, reply: Reply
    ) -> HttpResponse | None:
        """Accept a body, or return its rejection; an accepted body gets one `reply`, later.

        `body` has at most `dpstream.topics.envelopes.BODY_MAX` bytes. `subject` is the token's
        subject, if the job uses tokens. `now` is in milliseconds since 1970 by the broker's clock.
        """
        answer = self._offer(body, subject, now, reply)
        if answer is not None:
            self.reject(answer)
        return answer

    def reject(self, answer: HttpResponse) -> None:
        self.counters.rejected[answer.reason or ""] += 1

    def reports(self, body: bytes) -> int:
        rules = self.intake.rules(body)
        return rules.envelopes(body) if isinstance(rules, IntakeRules) else 0

    def close(self, epoch: int) -> None:
        """Accept no more reports for this epoch and earlier epochs, whatever the time."""
        self._first_open = max(self._first_open, epoch + 1)

    def _offer(
        self, body: bytes, subject: str | None, now: int, reply: Reply
    ) -> HttpResponse | None:
        rules = self.intake.rules(body)
        if isinstance(rules, HttpResponse):
            return rules
        rejection = rules.rejection(len(body), now)
        if rejection is not None:
            return rejection
        if rules.epoch < self._first_open:
            return RequestProblem.LATE.answer()
        if not self._capacity.enter(len(body)):
            return RequestProblem.BUSY.answer(retry_after=RETRY_SECONDS)
        envelopes = rules.envelopes(body)
        self.counters.received += envelopes
        group = self._groups.get(rules)
        if group is None:
            group = self._groups[rules] = _Group()
            loop = asyncio.get_running_loop()
            loop.call_later(self._seconds, self._seal, rules, group)
        group.bodies.append(body)
        group.subjects.append(subject)
        group.replies.append(reply)
        group.size += len(body)
        group.row_bytes += envelopes * rules.row_bytes
        if group.row_bytes >= LOOSE_PAYLOAD_TARGET:
            self._seal(rules, group)
        return None

    def is_open(self, epoch: int) -> bool:
        return epoch in self._commits.values() or any(
            rules.epoch == epoch for rules in self._groups
        )

    async def finish(self) -> None:
        for rules, group in list(self._groups.items()):
            self._seal(rules, group)
        while self._commits:
            await asyncio.wait(self._commits)

    def _seal(self, rules: IntakeRules, group: _Group) -> None:
        if self._groups.get(rules) is not group:
            return
        del self._groups[rules]
        task = asyncio.get_running_loop().create_task(self._commit(rules, group))
        self._commits[task] = rules.epoch
        task.add_done_callback(self._commits.pop)

    async def _commit(self, rules: IntakeRules, group: _Group) -> None:
        answers: list[HttpResponse | None] = [None] * len(group.bodies)
        try:
            taken = self.intake.take(rules, group.bodies, group.subjects)
            answers = list(taken.rejections)
            async with asyncio.timeout(self._timeout_of(rules)):
                written = await self._write(rules, taken)
        except (WriteError, TimeoutError):
            unwritten = RequestProblem.UNAVAILABLE.answer(retry_after=RETRY_SECONDS)
            answers = [answer or unwritten for answer in answers]
        except Exception as error:
            self._failed(error)
            answers = [answer or RequestProblem.INTERNAL.answer() for answer in answers]
        else:
            if written is not None and written >= rules.settles:
                # The window might have been finalized: the process was suspended, or Kafka was
                # unavailable.
                answers = [answer or RequestProblem.LATE.answer() for answer in answers]
            else:
                self.counters.acknowledged += taken.reports
                self.counters.epochs[rules.epoch] += taken.reports
        finally:
            self._capacity.leave(len(group.bodies), group.size)
        for body, answer, reply in zip(group.bodies, answers, group.replies, strict=True):
            if answer is not None:
                self.reject(answer)
            try:
                reply(answer or accepted(rules.envelopes(body), rules.epoch))
            except Exception as error:
                # This concerns one client: other clients are still answered.
                self._failed(error)

    def _timeout_of(self, rules: IntakeRules) -> float:
        """Return the maximum seconds to wait for a write, at most until shortly after `settles`."""
        now = self._now()
        left = float("inf") if now is None else (rules.settles - now) / 1000
        return min(self._timeout, max(0.0, left) + _AFTERWARDS_SECONDS)

    async def _write(self, rules: IntakeRules, taken: Taken) -> int | None:
        """Write enrollments first: readers of a report then find its device enrolled."""
        job = self.intake.job
        await self._write_all(job.topic(Role.DEVICES), 0, taken.enrollments)
        partition = job.topics.partition_of(rules.epoch)
        return await self._write_all(job.topic(Role.REPORTS), partition, taken.batches)

    async def _write_all(self, topic: str, partition: int, records: Sequence[bytes]) -> int | None:
        if len(records) == 1:
            written = [await self._writer.write(topic, partition, records[0])]
        else:
            written = await self._write_together(topic, partition, records)
        self.counters.records += len(records)
        # Without an append time, the current time is used.
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
"""Maximum number of epochs returned together: many can be due after a long sleep."""


class Watermarks:
    def __init__(self, intake: Intake, now: int) -> None:
        self.intake = intake
        job = intake.job
        epoch = max(job.first_epoch, intake.times.epoch_of(now))
        while epoch > job.first_epoch and intake.settles(epoch - 1) > now:
            epoch -= 1
        self.next = epoch
        """First epoch without a written watermark."""

    def due(self, now: int) -> list[int]:
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

    def mark_sent(self, epoch: int) -> None:
        self.next = epoch + 1
