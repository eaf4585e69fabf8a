"""Test a supervisor's schedule: requested workers run eventually, with restart back-off."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.operations.processes import RECOVERED_AFTER
from dpstream.pipeline.operations.supervisor.schedule import (
    BACK_OFF_FIRST,
    BACK_OFF_MAX,
    TERMINATE_SECONDS,
    Kill,
    Schedule,
    Start,
    Step,
    Terminate,
)

JOBS = ("a", "b", "c")
VERSIONS = (b"1", b"2")
PAST_EVERYTHING = TERMINATE_SECONDS + BACK_OFF_MAX


@dataclass(frozen=True)
class Want:
    job: str
    version: bytes | None


@dataclass(frozen=True)
class Die:
    job: str


@dataclass(frozen=True)
class Wait:
    seconds: float


Event = Want | Die | Wait
WANTS = st.builds(Want, st.sampled_from(JOBS), st.sampled_from([None, *VERSIONS]))
DEATHS = st.builds(Die, st.sampled_from(JOBS))
WAITS = st.builds(Wait, st.floats(0.0, 2 * RECOVERED_AFTER))
EVENTS = st.lists(WANTS | DEATHS | WAITS, max_size=60)


@dataclass
class Machine:
    """Simulated processes that follow a schedule; `stubborn` ones exit only when killed."""

    stubborn: frozenset[str] = frozenset()
    schedule: Schedule = field(default_factory=Schedule)
    now: float = 0.0
    target: dict[str, bytes] = field(default_factory=dict)
    running: dict[str, bytes] = field(default_factory=dict)
    history: dict[str, list[tuple[float, Step]]] = field(default_factory=dict)

    def happen(self, event: Event) -> None:
        match event:
            case Want(job, None):
                self.target.pop(job, None)
                self.schedule.target(self.target)
            case Want(job, version):
                self.target[job] = version or b""
                self.schedule.target(self.target)
            case Die(job) if job in self.running:
                del self.running[job]
                self.schedule.ended(job, self.now)
            case Wait(seconds):
                self.now += seconds
        self.obey()

    def obey(self) -> None:
        for step in list(self.schedule.steps(self.now)):
            self.history.setdefault(step.job, []).append((self.now, step))
            match step:
                case Start(job, version):
                    assert job not in self.running, "a job has at most one worker at a time"
                    self.running[job] = version
                case Terminate(job) if job in self.stubborn:
                    assert job in self.running
                case Terminate(job) | Kill(job):
                    del self.running[job]
                    self.schedule.ended(job, self.now)

    def starts(self, job: str) -> list[float]:
        return [at for at, step in self.history.get(job, []) if isinstance(step, Start)]

    def settle(self) -> None:
        for _ in range(3):
            self.happen(Wait(PAST_EVERYTHING))


@given(EVENTS, st.frozensets(st.sampled_from(JOBS)))
def test_running_tasks_converge_to_the_target_tasks(
    events: list[Event], stubborn: frozenset[str]
) -> None:
    machine = Machine(stubborn)
    for event in events:
        machine.happen(event)
    machine.settle()
    assert machine.running == machine.target
    assert machine.schedule.jobs == machine.target.keys()
    assert not list(machine.schedule.steps(machine.now))


@given(EVENTS)
def test_jobs_are_scheduled_independently(events: list[Event]) -> None:
    together = Machine()
    for event in events:
        together.happen(event)
    for job in JOBS:
        alone = Machine()
        for event in events:
            if isinstance(event, Wait) or event.job == job:
                alone.happen(event)
            else:
                alone.obey()
        assert alone.history.get(job, []) == together.history.get(job, [])


@given(st.integers(1, 40), st.floats(0.0, 0.9))
def test_restart_delay_doubles_with_each_immediate_failure(failures: int, lasting: float) -> None:
    machine = Machine()
    machine.happen(Want("a", b"1"))
    for number in range(failures):
        machine.happen(Wait(lasting))
        machine.happen(Die("a"))
        wait = min(BACK_OFF_FIRST * 2**number, BACK_OFF_MAX)
        assert "a" in machine.schedule.jobs
        machine.happen(Wait(0.999 * wait))
        assert "a" not in machine.running
        machine.happen(Wait(0.002 * wait))
        assert "a" in machine.running


@given(EVENTS)
def test_number_of_worker_starts_is_bounded_by_requests_and_time(events: list[Event]) -> None:
    """Only an operator's request starts a worker immediately; all other starts have back-off."""
    machine = Machine()
    words: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Want):
            words[event.job] += 1
        machine.happen(event)
    for job in JOBS:
        assert len(machine.starts(job)) <= words[job] + machine.now / BACK_OFF_FIRST


def test_urgent_stop_kills_workers_without_waiting() -> None:
    schedule = Schedule()
    schedule.target({"a": b"1"})
    list(schedule.steps(0.0))
    schedule.target({})
    assert list(schedule.steps(1.0)) == [Terminate("a")]
    schedule.hurry()
    assert list(schedule.steps(1.0)) == [Kill("a")]


def test_idle_worker_starts_when_woken_or_updated() -> None:
    schedule = Schedule()
    schedule.target({"a": b"1", "b": b"1"})
    list(schedule.steps(0.0))
    schedule.idled("a")
    assert schedule.idle == {"a"}
    assert schedule.jobs == {"a", "b"}
    assert list(schedule.steps(100.0)) == []
    schedule.woken("a")
    assert list(schedule.steps(101.0)) == [Start("a", b"1")]
    schedule.idled("a")
    schedule.target({"a": b"2", "b": b"1"})
    assert list(schedule.steps(102.0)) == [Start("a", b"2")]
    schedule.idled("a")
    schedule.target({"b": b"1"})
    assert not schedule.idle
    assert schedule.jobs == {"b"}
