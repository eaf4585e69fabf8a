"""A device that is killed after every single step, and goes on: nothing is drawn twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from randomizers.client import Answer, DeviceError, Limit, UnreachableError
from tests.randomizers.client.conftest import Phone
from tests.support.small_collector import (
    DAY,
    SETS,
    STREAM,
    MemoryStore,
    SmallCollector,
    deployed,
    problem,
)
from topics.envelopes import decode_body

MakePhone = Callable[..., Phone]


class KilledError(BaseException):
    """The app's process is no more."""


class Mortal:
    """The store and the network of a process that dies before or after its n-th action."""

    def __init__(self, phone: Phone, actions: int, *, after: bool) -> None:
        self.collector, self.inner = phone.collector, phone.store
        self.left, self.after = actions, after

    def carry_out(self, action: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KilledError
        done = action()
        if self.left == 0:
            raise KilledError
        return done

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        answer: Answer = self.carry_out(lambda: self.collector.request(method, path, body, headers))
        return answer

    def read(self) -> tuple[int, str | None]:
        return self.inner.read()  # type: ignore[no-any-return]

    def replace(self, revision: int, text: str) -> bool:
        replaced: bool = self.carry_out(lambda: self.inner.replace(revision, text))
        return replaced


def days(phone: Phone, *, kill: int | None) -> int:
    """Five days of an app that is started anew after it was killed; how often it did anything."""
    mortal = Mortal(phone, kill or 10**6, after=True)
    phone.store, phone.more = mortal, {"transport": mortal}
    start = phone.start
    device = start()
    for day in range(5):
        phone.collector.dead = day == 2
        for _ in range(2):
            try:
                device.join()
                device.report(day % 2)
                phone.seconds += 10
                device.send()
            except KilledError:
                device = start()
        phone.wait(DAY)
    return 10**6 - mortal.left


def seen_twice(collector: SmallCollector) -> list[object]:
    """Epochs of which the server has seen two draws, by whatever device they say they are of."""
    draws: dict[tuple[bytes, int], set[bytes]] = {}
    for (deployment, epoch, _), bodies in collector.drawn.items():
        draws.setdefault((deployment, epoch), set()).update(bodies)
    return [key for key, bodies in draws.items() if len(bodies) > 1]


@pytest.mark.parametrize("job", [STREAM, SETS], ids=["stream", "epochs"])
def test_killed_at_any_step_it_goes_on_where_it_was(
    make_phone: MakePhone, job: dict[str, Any]
) -> None:
    told = {"values": job}
    undisturbed = make_phone(told)
    steps = days(undisturbed, kill=None)
    spent = undisturbed.start().account().spent
    assert steps > 25
    for kill in range(1, steps + 1):
        # Before an action is after the one before it.
        phone = Phone(SmallCollector(undisturbed.collector.job))
        days(phone, kill=kill)
        assert seen_twice(phone.collector) == []
        assert phone.start().account().spent == spent
        # One epoch is lost where the server is dead and one where the app's turns are over.
        assert len(phone.collector.taken) >= 3
        assert len({device for _, device in phone.collector.taken}) == 1


def test_a_store_that_is_read_by_two_at_once(phone: Phone) -> None:
    """Another process takes the same step between every reading and writing of this one."""
    phone.start().join()
    other = phone.start()

    class Racing(MemoryStore):
        raced = 0

        def replace(self, revision: int, text: str) -> bool:
            if self.raced < 5:
                self.raced += 1
                other.report(True)
                phone.wait(DAY)
            replaced: bool = phone.store.replace(revision, text)
            return replaced

        def read(self) -> tuple[int, str | None]:
            read: tuple[int, str | None] = phone.store.read()
            return read

    device = Phone(phone.collector, store=Racing()).start()
    told = device.report(False)
    assert not told.drawn
    assert seen_twice(phone.collector) == []


class Lying(RuleBasedStateMachine):
    """Whatever the app, the clocks and the server do, a device keeps what it has promised."""

    jobs: ClassVar[dict[Any, Any]] = {}

    @initialize(limit=st.integers(0, 4), job=st.sampled_from(["stream", "epochs"]))
    def begin(self, limit: int, job: str) -> None:
        self.values = STREAM if job == "stream" else SETS
        self.number = 1
        self.phone = Phone(SmallCollector(self.deploy(1)), limit=Limit.of(limit, 1))
        self.device = self.phone.start()

    def deploy(self, number: int) -> Any:
        key = (self.values["name"], number)
        if key not in self.jobs:
            self.jobs[key] = deployed(self.values, number=number)
        return self.jobs[key]

    @rule(number=st.integers(1, 4))
    def redeploy(self, number: int) -> None:
        self.phone.collector.job = self.deploy(number)

    @rule(dead=st.booleans())
    def die(self, dead: bool) -> None:
        self.phone.collector.dead = dead

    @rule(status=st.sampled_from([0, 200, 202, 301, 400, 404, 409, 410, 429, 500, 503]))
    def lie(self, status: int) -> None:
        lies = {
            0: lambda answer: answer,
            202: lambda _: Answer(202),
            409: lambda _: problem(409, "late"),
        }
        self.phone.collector.answer = lies.get(status, lambda _: problem(status, "odd"))

    @rule(hours=st.integers(-100, 100))
    def say_another_time(self, hours: int) -> None:
        self.phone.collector.time += hours * DAY // 24

    @rule(hours=st.integers(-100, 100))
    def set_the_clock(self, hours: int) -> None:
        self.phone.time += hours * DAY // 24

    @rule(hours=st.integers(1, 40))
    def wait(self, hours: int) -> None:
        self.phone.wait(hours * DAY // 24)

    @rule()
    def start_anew(self) -> None:
        self.device = self.phone.start()

    @rule(again=st.booleans())
    def join(self, again: bool) -> None:
        with contextlib.suppress(DeviceError):
            self.device.join(again=again)

    @rule(value=st.sampled_from([0, 1]))
    def report(self, value: int) -> None:
        with contextlib.suppress(DeviceError):
            self.device.report(value)

    @rule()
    def send(self) -> None:
        self.device.send()

    @rule()
    @precondition(lambda self: self.device.account().spent.epsilon > 10**9)
    def leave(self) -> None:
        self.device.leave()

    @rule(value=st.sampled_from([0, 1]), kill=st.integers(1, 6), after=st.booleans())
    def be_killed(self, value: int, kill: int, after: bool) -> None:
        mortal = Mortal(self.phone, kill, after=after)
        store, self.phone.store = self.phone.store, mortal
        self.phone.more = {"transport": mortal}
        with contextlib.suppress(DeviceError, KilledError):
            self.phone.start().report(value)
        self.phone.store, self.phone.more = store, {}
        self.device = self.phone.start()

    @invariant()
    def nothing_is_drawn_twice_and_nothing_beyond_the_limit(self) -> None:
        if not hasattr(self, "phone"):
            return
        collector = self.phone.collector
        assert seen_twice(collector) == []
        spent, limit = self.device.account().spent, self.phone.limit
        assert spent.epsilon <= limit.epsilon
        # What was seen is no more than what was charged for.
        epochs = {(deployment, epoch) for deployment, epoch, _ in collector.drawn}
        stream = self.values is STREAM
        charged = {(job, (epoch - 1) // 4 if stream else epoch) for job, epoch in epochs}
        assert len(charged) * 10**9 <= spent.epsilon


Lying.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLying = Lying.TestCase


@pytest.mark.verify
def test_lies_of_all_kinds() -> None:
    run_state_machine_as_test(
        Lying, settings=settings(max_examples=1000, stateful_step_count=60, deadline=None)
    )


def test_what_arrives_is_of_the_known_form(phone: Phone) -> None:
    device = phone.start()
    device.join()
    device.report(True)
    (body,) = phone.collector.taken.values()
    envelopes = decode_body(body)
    form = phone.collector.job.content_form
    slots, counts, good = form.unpack(envelopes.contents)
    assert good.all()
    assert counts[0] <= form.slots
    assert slots.shape == (1, form.slots, form.width)


def test_an_unreachable_server_is_no_error_of_a_report(phone: Phone) -> None:
    device = phone.start()
    device.join()
    phone.collector.dead = True
    assert device.report(True).sending.waiting == 1
    with pytest.raises(UnreachableError):
        phone.collector.request("GET", "/", None, {})
