"""Decide the next steps of a supervisor as a pure function of events and times.

Jobs are independent: starting or stopping one job's worker never affects other workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dpstream.pipeline.operations.processes import BackOff

BACK_OFF_FIRST = 1.0
BACK_OFF_MAX = 60.0
"""Maximum seconds before a failed worker is restarted; the wait doubles with each failure."""

TERMINATE_SECONDS = 10.0
"""Seconds between requesting a worker to stop and killing it."""


@dataclass(frozen=True, slots=True)
class Start:
    job: str
    version: bytes


@dataclass(frozen=True, slots=True)
class Terminate:
    job: str


@dataclass(frozen=True, slots=True)
class Kill:
    job: str


START_SECONDS = 2.0
"""Approximate seconds from a worker's start until it works."""

Step = Start | Terminate | Kill


@dataclass(slots=True)
class _Slot:
    target: bytes | None = None
    running: bytes | None = None
    idle: bytes | None = None
    failed: bytes | None = None
    started_at: float = 0.0
    stop_requested_at: float | None = None
    killed: bool = False
    back_off: BackOff = field(default_factory=lambda: BackOff(BACK_OFF_FIRST, BACK_OFF_MAX))
    restart_at: float = 0.0

    def end(self) -> tuple[bytes | None, bool]:
        ran, requested = self.running, self.stop_requested_at is not None
        self.running, self.stop_requested_at, self.killed = None, None, False
        return ran, requested

    @property
    def is_idle(self) -> bool:
        return self.running is None and self.idle is not None and self.idle == self.target


class Schedule:
    """Decide which workers to start and to stop.

    Report events with `target` and `ended`; `steps` returns the steps to take. Each job has at most
    one running worker, which is replaced when another version is requested. Times are monotonic
    seconds.

    >>> schedule = Schedule()
    >>> schedule.target({"students": b"1"})
    >>> list(schedule.steps(0.0))
    [Start(job='students', version=b'1')]
    >>> schedule.ended("students", 5.0)  # seconds until it is started again
    1.0
    >>> list(schedule.steps(5.5)), list(schedule.steps(6.0))
    ([], [Start(job='students', version=b'1')])

    An idle worker has exited for lack of work. It is not started until it is woken or another
    version is requested:

    >>> schedule.idled("students")
    >>> list(schedule.steps(500.0)), schedule.idle
    ([], frozenset({'students'}))
    >>> schedule.woken("students")
    >>> list(schedule.steps(501.0))
    [Start(job='students', version=b'1')]

    Workers are killed `timeout` seconds after the request to stop. At most `at_once` workers are
    started within `START_SECONDS`; None means no limit.
    """

    def __init__(self, timeout: float = TERMINATE_SECONDS, at_once: int | None = None) -> None:
        self._timeout = timeout
        self._at_once = at_once
        self._slots: dict[str, _Slot] = {}

    @property
    def jobs(self) -> frozenset[str]:
        return frozenset(self._slots)

    def target(self, versions: Mapping[str, bytes]) -> None:
        for job in versions.keys() | self._slots.keys():
            self._slots.setdefault(job, _Slot()).target = versions.get(job)
        self._drop()

    @property
    def idle(self) -> frozenset[str]:
        return frozenset(job for job, slot in self._slots.items() if slot.is_idle)

    def idled(self, job: str) -> None:
        slot = self._slots[job]
        ran, requested = slot.end()
        slot.back_off.failures, slot.failed = 0, None
        slot.idle = None if requested else ran
        self._drop()

    def woken(self, job: str) -> None:
        if (slot := self._slots.get(job)) is not None:
            slot.idle = None

    def ended(self, job: str, now: float) -> float | None:
        """Record an exit; return the seconds until the restart, or None after a requested stop."""
        slot, wait = self._slots[job], None
        ran, requested = slot.end()
        if requested:
            slot.back_off.failures, slot.failed = 0, None
        else:
            wait = slot.back_off.failed(now - slot.started_at)
            slot.failed, slot.restart_at = ran, now + wait
        self._drop()
        return wait

    def steps(self, now: float) -> Iterator[Step]:
        young = sum(
            slot.running is not None and now < slot.started_at + START_SECONDS
            for slot in self._slots.values()
        )
        for job, slot in self._slots.items():
            if slot.is_idle:
                continue
            if slot.running is None:
                # A failure of one version does not delay another version.
                if slot.target != slot.failed:
                    slot.back_off.failures = 0
                waited = slot.back_off.failures == 0 or now >= slot.restart_at
                room = self._at_once is None or young < self._at_once
                if slot.target is not None and waited and room:
                    slot.running, slot.started_at, slot.idle = slot.target, now, None
                    young += 1
                    yield Start(job, slot.target)
            elif slot.stop_requested_at is None:
                if slot.target != slot.running:
                    slot.stop_requested_at = now
                    yield Terminate(job)
            elif not slot.killed and now >= slot.stop_requested_at + self._timeout:
                slot.killed = True
                yield Kill(job)

    def hurry(self) -> None:
        self._timeout = 0.0

    def _drop(self) -> None:
        self._slots = {
            job: slot
            for job, slot in self._slots.items()
            if slot.target is not None or slot.running is not None
        }
