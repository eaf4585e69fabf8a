"""Test devices that are killed after any step and restarted: each epoch is drawn once."""

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

from dpstream.randomizers.client import Device, DeviceError, Limit, ServerResponse, UnreachableError
from dpstream.randomizers.client.document import Document
from dpstream.topics.envelopes import decode_body
from tests.randomizers.client.conftest import Phone
from tests.support.small_collector import (
    ASKED,
    DAY,
    MEASURED,
    SETS,
    START,
    STREAM,
    MemoryStore,
    SmallCollector,
    deployed,
    problem,
)

MakePhone = Callable[..., Phone]


class KilledError(BaseException):
    """Simulated death of the app's process."""


class Mortal:
    """Simulate the store and the network of a process that dies before or after its n-th action."""

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
    ) -> ServerResponse:
        answer: ServerResponse = self.carry_out(
            lambda: self.collector.request(method, path, body, headers)
        )
        return answer

    def read(self) -> tuple[int, str | None]:
        return self.inner.read()  # type: ignore[no-any-return]

    def replace(self, revision: int, text: str) -> bool:
        replaced: bool = self.carry_out(lambda: self.inner.replace(revision, text))
        return replaced


def days(phone: Phone, *, kill: int | None) -> int:
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
    """Return epochs for which the server received two different draws, under any device id."""
    draws: dict[tuple[bytes, int], set[bytes]] = {}
    for (deployment, epoch, _), bodies in collector.drawn.items():
        draws.setdefault((deployment, epoch), set()).update(bodies)
    return [key for key, bodies in draws.items() if len(bodies) > 1]


@pytest.mark.parametrize("job", [STREAM, SETS, ASKED], ids=["stream", "epochs", "asked"])
def test_device_resumes_after_it_is_killed_at_any_step(
    make_phone: MakePhone, job: dict[str, Any]
) -> None:
    told = {"values": job}
    undisturbed = make_phone(told)
    steps = days(undisturbed, kill=None)
    spent = undisturbed.start().account().spent
    assert steps > 25
    for kill in range(1, steps + 1):
        # Killing before an action is the same as killing after the previous one.
        phone = Phone(SmallCollector(undisturbed.collector.job))
        days(phone, kill=kill)
        assert seen_twice(phone.collector) == []
        assert phone.start().account().spent == spent
        # One epoch is lost while the server is down, another when the app runs out of attempts.
        assert len(phone.collector.taken) >= 3
        assert len({device for _, device in phone.collector.taken}) == 1


def test_device_step_is_repeated_if_another_process_writes_first(phone: Phone) -> None:
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


class Watched(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[tuple[str, int], set[bytes]] = {}
        self.enrolled: dict[tuple[str, int], set[bytes]] = {}
        self.meanwhile: Callable[[], object] | None = None

    def replace(self, revision: int, text: str) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if not super().replace(revision, text):
            return False
        for member in Document.from_text(text).members.values():
            if member is None:
                continue
            name = member.statement.deployment.hex()
            for waiting in member.waiting:
                drawn = self.enrolled if waiting.enrolls else self.drawn
                drawn.setdefault((name, waiting.epoch), set()).add(waiting.body)
        return True


hours = st.integers(-100, 100) | st.integers(-24_000, 24_000)
tabs = st.integers(0, 1)


class Lying(RuleBasedStateMachine):
    """The account stays exact under arbitrary actions of the app, two tabs, clocks and server."""

    jobs: ClassVar[dict[Any, Any]] = {}

    @initialize(limit=st.integers(0, 6), job=st.sampled_from([STREAM, SETS, ASKED, MEASURED]))
    def begin(self, limit: int, job: dict[str, Any]) -> None:
        self.values = job
        open_before = 2 if job is MEASURED else 0
        self.collector = SmallCollector(self.deploy(1), open_before=open_before)
        self.store = Watched()
        self.limit = Limit.of(limit, 1)
        self.tabs = [Phone(self.collector, self.store, self.limit) for _ in range(2)]
        self.devices = [phone.start() for phone in self.tabs]

    def deploy(self, number: int) -> Any:
        key = (self.values["name"], number)
        if key not in self.jobs:
            self.jobs[key] = deployed(self.values, number=number, at=START + number)
        return self.jobs[key]

    def use(self, device: Device, value: int, ago: int = 0) -> None:
        if self.values is not MEASURED:
            device.report(value, ago=ago)
            return
        if value:
            device.record("search")
        device.report()

    @rule(number=st.integers(1, 4))
    def redeploy(self, number: int) -> None:
        self.collector.job = self.deploy(number)

    @rule(dead=st.booleans())
    def die(self, dead: bool) -> None:
        self.collector.dead = dead

    @rule(status=st.sampled_from([0, 200, 202, 301, 400, 404, 409, 410, 429, 500, 503]))
    def lie(self, status: int) -> None:
        lies = {
            0: lambda answer: answer,
            202: lambda _: ServerResponse(202),
            409: lambda _: problem(409, "late"),
        }
        self.collector.answer = lies.get(status, lambda _: problem(status, "odd"))

    @rule(hours=hours)
    def say_another_time(self, hours: int) -> None:
        self.collector.time += hours * DAY // 24

    @rule(hours=hours, tab=tabs)
    def set_the_clock(self, hours: int, tab: int) -> None:
        self.tabs[tab].time += hours * DAY // 24

    @rule()
    def tell_the_truth(self) -> None:
        self.collector.time = START + DAY // 2
        for phone in self.tabs:
            phone.time = self.collector.time

    @rule(hours=st.integers(1, 40))
    def wait(self, hours: int) -> None:
        self.collector.time += hours * DAY // 24
        for phone in self.tabs:
            phone.time += hours * DAY // 24
            phone.seconds += hours * 3600

    @rule(tab=tabs)
    def start_anew(self, tab: int) -> None:
        self.devices[tab] = self.tabs[tab].start()

    @rule(again=st.booleans(), tab=tabs)
    def join(self, again: bool, tab: int) -> None:
        with contextlib.suppress(DeviceError):
            self.devices[tab].join(again=again)

    @rule(value=st.sampled_from([0, 1]), ago=st.integers(0, 2), tab=tabs)
    def report(self, value: int, ago: int, tab: int) -> None:
        with contextlib.suppress(DeviceError):
            self.use(self.devices[tab], value, ago)

    @rule(tab=tabs)
    def send(self, tab: int) -> None:
        self.devices[tab].send()

    @rule(tab=tabs)
    @precondition(lambda self: self.devices[0].account().spent.epsilon > 10**9)
    def leave(self, tab: int) -> None:
        self.devices[tab].leave()

    @rule(value=st.sampled_from([0, 1]), kill=st.integers(1, 6), after=st.booleans(), tab=tabs)
    def be_killed(self, value: int, kill: int, after: bool, tab: int) -> None:
        phone = self.tabs[tab]
        mortal = Mortal(phone, kill, after=after)
        phone.store, phone.more = mortal, {"transport": mortal}
        with contextlib.suppress(DeviceError, KilledError):
            phone.start().join()
            self.use(phone.start(), value)
        phone.store, phone.more = self.store, {}
        self.devices[tab] = phone.start()

    @rule(hours=hours, join=st.booleans(), tab=tabs)
    def act_between_reading_and_writing_of_the_other_tab(
        self, hours: int, join: bool, tab: int
    ) -> None:
        def meanwhile() -> None:
            self.collector.time += hours * DAY // 24
            with contextlib.suppress(DeviceError):
                self.use(self.devices[1 - tab], 1)

        self.store.meanwhile = meanwhile
        with contextlib.suppress(DeviceError):
            if join:
                self.devices[tab].join(again=True)
            self.use(self.devices[tab], 0)
        self.store.meanwhile = None

    @invariant()
    def nothing_is_drawn_twice_and_all_is_charged_for(self) -> None:
        if not hasattr(self, "tabs"):
            return
        assert seen_twice(self.collector) == []
        assert all(len(bodies) == 1 for bodies in self.store.drawn.values())
        account = self.devices[0].account()
        assert account.spent.epsilon <= self.limit.epsilon
        stream = self.values is not SETS
        for entry in account.entries:
            drawn = {
                (epoch - 1) // 4 if stream else epoch
                for deployment, epoch in [*self.store.drawn, *self.store.enrolled]
                if deployment == entry.deployment
            }
            # Joining a job with unit "stream" is charged before any draw.
            assert entry.charges == max(len(drawn), stream)
        assert sorted(account.entries, key=lambda each: each.deployed) == [*account.entries]
        assert account.spent.epsilon == 10**9 * sum(each.charges for each in account.entries)


Lying.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestLying = Lying.TestCase


@pytest.mark.verify
def test_privacy_account_is_exact_under_arbitrary_actions() -> None:
    run_state_machine_as_test(
        Lying, settings=settings(max_examples=1000, stateful_step_count=60, deadline=None)
    )


def test_sent_content_has_the_format_of_the_job(phone: Phone) -> None:
    device = phone.joined()
    device.report(True)
    (body,) = phone.collector.taken.values()
    envelopes = decode_body(body)
    form = phone.collector.job.content_format
    slots, counts, good = form.unpack(envelopes.contents)
    assert good.all()
    assert counts[0] <= form.slots
    assert slots.shape == (1, form.slots, form.width)


def test_report_waits_when_the_server_is_unreachable(phone: Phone) -> None:
    device = phone.joined()
    phone.collector.dead = True
    assert device.report(True).sending.waiting == 1
    with pytest.raises(UnreachableError):
        phone.collector.request("GET", "/", None, {})
