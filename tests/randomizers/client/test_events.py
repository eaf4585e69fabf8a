"""Test devices that compute their answers from recorded events."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import statement_of
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.randomizers.client import (
    ClosedError,
    Device,
    NotJoinedError,
    StatementError,
    StoreError,
    ValueRejectedError,
)
from dpstream.randomizers.client import steps as client_steps
from dpstream.randomizers.client.document import Document
from dpstream.randomizers.client.events import DeviceEvents
from dpstream.randomizers.client.statements import read_statement
from dpstream.randomizers.one_device import OneDevice
from tests.randomizers.client.conftest import Phone
from tests.randomizers.javascript.client_vectors import COUNTED, DIVIDED, SUMMED_BY_THE_SHUFFLER
from tests.support.small_collector import (
    DAY,
    MEASURED,
    START,
    STREAM,
    MemoryStore,
    SmallCollector,
    deployed,
)

MakePhone = Callable[..., Phone]


@pytest.fixture(scope="module")
def job() -> Any:
    return deployed(MEASURED)


@pytest.fixture
def phone(job: Any) -> Phone:
    return Phone(SmallCollector(job, open_before=2))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Values that randomizers received."""
    received: list[Any] = []
    report = OneDevice.report

    def watched(self: Any, epoch: int, value: Any, read: Any) -> Any:
        received.append(value)
        return report(self, epoch, value, read)

    monkeypatch.setattr(OneDevice, "report", watched)
    return received


def epochs_of(phone: Phone) -> list[int]:
    return [epoch for epoch, _ in phone.collector.taken]


def test_device_reports_each_ended_epoch_once_from_recorded_events(
    phone: Phone, answers: list[Any]
) -> None:
    device = phone.joined()
    assert not device.report().drawn
    device.record("search")
    device.record("search")
    device.record("open")
    assert not device.report().drawn, "the epoch has not ended"
    phone.wait(DAY)
    report = device.report()
    assert (report.epoch, report.drawn) == (1, True)
    assert not phone.start().report().drawn
    phone.wait(2 * DAY)
    device.report()
    phone.wait(DAY)
    device.report()
    assert epochs_of(phone) == [1, 2, 3, 4]
    assert answers == [1, 1, 0, 0]


def test_recording_makes_no_request_and_costs_nothing(phone: Phone) -> None:
    device = phone.joined()
    before, spent = len(phone.collector.requests), device.account().spent
    phone.collector.dead = True
    device.record("search", numbers={"minutes": 3.0})
    assert (len(phone.collector.requests), device.account().spent) == (before, spent)


def test_late_event_counts_in_later_windows_and_changes_no_drawn_report(
    phone: Phone, answers: list[Any]
) -> None:
    device = phone.joined()
    phone.wait(DAY)
    device.report()
    drawn = dict(phone.collector.taken)
    device.record("search", at=START)
    device.record("search", at=START + 5)
    device.report()
    assert phone.collector.taken == drawn
    phone.wait(DAY)
    device.report()
    assert answers == [0, 1]


def test_epochs_that_are_no_longer_accepted_are_skipped(phone: Phone, answers: list[Any]) -> None:
    device = phone.joined()
    phone.wait(6 * DAY)
    device.record("search", at=START)
    for moment in (5 * DAY, 5 * DAY + 1):
        device.record("search", at=START + moment)
    report = device.report()
    assert (report.epoch, report.drawn) == (6, True)
    assert epochs_of(phone) == [5, 6]
    assert answers == [0, 1]


def test_history_survives_a_new_horizon_and_a_deployment_of_the_same_measures(
    phone: Phone, answers: list[Any]
) -> None:
    device = phone.joined()
    phone.wait(3 * DAY)
    device.record("search")
    phone.wait(DAY)
    device.record("search")
    phone.collector.job = deployed(MEASURED, number=2, at=phone.time)
    assert device.report().sending.gone
    device.record("search")
    with pytest.raises(NotJoinedError):
        device.report()
    device.join()
    phone.wait(DAY)
    device.report()
    assert answers[-1] == 1
    other = {**MEASURED["measures"]["often"], "at_least": 1}
    phone.collector.job = deployed(
        {**MEASURED, "measures": {"often": other}}, number=3, at=phone.time
    )
    device.send()
    phone.wait(DAY)
    device.report()
    device.join()
    phone.wait(DAY)
    device.report()
    assert answers[-1] == 0


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda device: device.report(True), "computes its answers from recorded events"),
        (lambda device: device.report(ago=1), "computes its answers from recorded events"),
        (lambda device: device.record("search", at=START + 2 * DAY), "up to now"),
        (lambda device: device.record("search", at=-1), "milliseconds since 1970"),
        (lambda device: device.attributes(plan="pro"), "no private attribute of this name"),
    ],
)
def test_unusable_arguments_are_rejected(
    phone: Phone, act: Callable[[Device], object], told: str
) -> None:
    device = phone.joined()
    before = phone.store.text
    with pytest.raises(ValueRejectedError, match=told):
        act(device)
    assert phone.store.text == before


def test_jobs_without_measures_take_values_only(make_phone: MakePhone) -> None:
    device = make_phone({"values": STREAM}).joined()
    with pytest.raises(ValueRejectedError, match="pass a value to report"):
        device.report()
    with pytest.raises(ValueRejectedError, match="has no measures"):
        device.record("search")
    with pytest.raises(NotJoinedError):
        make_phone({"values": STREAM}).start().record("search")


@pytest.mark.parametrize("number", [True, "3", float("nan"), float("inf"), 10**400])
def test_numbers_that_are_not_finite_are_rejected(number: Any) -> None:
    measures = {
        "long": {"type": "sum", "number": "minutes", "at_least": 3},
        "late": {"type": "max", "number": "hour", "at_least": 20},
    }
    events = events_of(measures)
    with pytest.raises(ValueRejectedError, match="finite number"):
        events.columns("a", None, None, {"minutes": number}, {})
    with pytest.raises(ValueRejectedError, match="pass 'numbers' with minutes or hour"):
        events.columns("a", 3.0, None, {}, {})
    assert events.columns("a", None, "ignored", {"minutes": 2, "other": number}, {}) == (
        {"minutes": 2.0},
        {},
    )


def events_of(measures: dict[str, Any]) -> DeviceEvents:
    questions = [{"name": name, "measure": body, "private": []} for name, body in measures.items()]
    return DeviceEvents.from_statement(
        {
            "events": {"questions": questions, "public": [], "private": []},
            "epochs": {"start": START},
            "values": {"size": 2, "slots": None},
            "law": {"groups": 1, "questions": questions},
            "protocol": "panels",
        }
    )


def test_answers_with_private_attributes_are_the_items_of_the_job() -> None:
    counted = deployed(COUNTED)
    (question,) = counted.questions
    events = read_statement(statement_of(counted).encode()).events
    assert events is not None
    counts, plans = ["0", "1", "2 to 4", "5 and more"], ["none", "other", "free", "pro"]
    firsts = {None: "never", -1: "earlier", 0: "2026-03-01", 3: "2026-03-03"}
    for count, plan, first in product((0, 1, 4, 6), plans, firsts):
        if (first is None) != (count == 0):
            continue
        history = events.history(None)
        moments = [8 * DAY] * (count - 1) + ([] if first is None else [first * DAY])
        for moment in moments:
            history.record(1 + moment // DAY, 1000 * (START + moment), "search")
        label = {"none": "", "other": "gold"}.get(plan, plan)
        history.record_labels(3, START, {"plan": label})
        history.close(9)
        counted_in_window = max(count - 1, 0)
        text = counts[(0, 1, 2, 2, 2, 3, 3)[counted_in_window]]
        item = events.value(events.history(json.loads(json.dumps(history.to_json()))), 9)
        expected = f"used={text},plan={plan},since={firsts[first]}"
        assert question.labels[np.ravel(item)[0] - 1] == expected


def test_statement_that_contradicts_its_mechanism_is_rejected(phone: Phone) -> None:
    statement = phone.statement()
    (question,) = statement["events"]["questions"]
    assert read_statement(json.dumps(statement).encode()).events is not None
    buckets = {"type": "count", "buckets": [0, 1, 2]}
    public = [{"name": "os", "values": ["ios", "other"]}]
    changes: list[dict[str, Any]] = [
        {"questions": [{**question, "measure": buckets}]},
        {"questions": []},
        {"questions": [question, question]},
        {"questions": [{**question, "private": ["plan"]}]},
        {"questions": [{**question, "measure": {"type": "average"}}]},
        {"public": public},
    ]
    for change in changes:
        forged = {**statement, "events": {**statement["events"], **change}}
        with pytest.raises(StatementError):
            read_statement(json.dumps(forged).encode())


@pytest.mark.parametrize("place", [0, 1])
def test_too_little_noise_in_any_question_is_rejected(place: int) -> None:
    statement = json.loads(statement_of(deployed(SUMMED_BY_THE_SHUFFLER)))
    client_steps.check_randomizer(read_statement(json.dumps(statement).encode()))
    statement["law"]["questions"][place]["law"]["deviation"] //= 2
    with pytest.raises(StatementError, match="noise of job sums is too small"):
        client_steps.check_randomizer(read_statement(json.dumps(statement).encode()))


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_larger_loss_of_any_question_is_rejected(name: str) -> None:
    statement = json.loads(statement_of(deployed(SUMMED_BY_THE_SHUFFLER)))
    statement["law"]["questions"][1]["law"][name] *= 2
    with pytest.raises(StatementError, match="the statement guarantees epsilon 1, delta 1e-06"):
        client_steps.check_randomizer(read_statement(json.dumps(statement).encode()))


def test_private_attributes_of_devices_have_different_columns() -> None:
    attributes = {name: {"values": [name], "column": "kind"} for name in ("plan", "tier")}
    parts = {"protocol": "panels", "attributes": attributes, "by": ["plan", "tier"]}
    with pytest.raises(JobError, match="a column of its own for each private attribute"):
        deployed({**MEASURED, **parts, "measures": {"used": {"type": "active"}}})


def test_terms_say_what_is_computed(phone: Phone) -> None:
    terms = phone.start().terms()
    assert terms.events is not None
    assert list(terms.events.measures) == ["often"]
    assert "How often you used search in the last 2 days, only as whether it is at" in str(terms)


def test_next_report_is_due_at_a_random_time_after_the_epoch_ends(phone: Phone) -> None:
    for jitter, due in ((0.0, 1.0), (0.5, 1.25), (1.0, 1.5)):
        phone.more = {"jitter": lambda jitter=jitter: jitter}
        assert phone.joined().report().after == due * DAY / 1000


def test_job_that_ended_takes_no_reports(make_phone: MakePhone) -> None:
    ending = {**MEASURED, "epochs": {**MEASURED["epochs"], "renew": False}}
    phone = make_phone({"values": ending})
    phone.collector.open_before = 2
    device = phone.joined()
    phone.wait(5 * DAY)
    assert device.report().epoch == 4
    phone.wait(DAY)
    with pytest.raises(ClosedError, match="has ended"):
        device.report()


def test_damaged_history_is_reported_and_can_be_deleted(phone: Phone) -> None:
    device = phone.joined()
    document = json.loads(phone.store.text)
    document["members"]["searches"]["history"]["measures"] = []
    phone.store.text = json.dumps(document)
    with pytest.raises(StoreError, match="damaged"):
        device.record("search")
    device.leave()


def test_observations_do_not_depend_on_events(job: Any) -> None:
    """Neither recording nor events change when a device sends what, except for contents."""
    seen = []
    for seed in range(3):
        events = Random(seed)
        phone = Phone(SmallCollector(job, open_before=2))
        phone.more = {"jitter": lambda: 0.25, "read": Random(9).randbytes}
        device, schedule, accounts, due = phone.joined(), [], [], 0.0
        for _ in range(40):
            for _ in range(seed * events.randrange(5)):
                device.record(events.choice(["search", "open"]))
            phone.wait(DAY // 4)
            # Waking up follows from earlier reports, not from use.
            if phone.seconds >= due:
                report = device.report()
                assert report.after is not None
                due = phone.seconds + report.after
                schedule.append((phone.time, report.epoch, report.drawn, report.after))
                accounts.append(str(device.account()))
        sizes = [
            (method, path, headers, len(body))
            for method, path, headers, body in phone.collector.requests
        ]
        seen.append((schedule, accounts, sizes, epochs_of(phone)))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0][3]) == 9


class Killed(BaseException):
    """Simulated death of the app's process."""


class KilledStore(MemoryStore):
    """Store of a process that dies before or after its n-th write."""

    def __init__(self, inner: MemoryStore, writes: int, *, after: bool) -> None:
        self.inner, self.left, self.after = inner, writes, after

    def read(self) -> tuple[int, str | None]:
        return self.inner.read()

    def replace(self, revision: int, text: str) -> bool:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        replaced = self.inner.replace(revision, text)
        if self.left == 0:
            raise Killed
        return replaced


@pytest.mark.parametrize("after", [False, True])
def test_events_and_draws_are_stored_together_when_a_device_is_killed(
    job: Any, after: bool, answers: list[Any]
) -> None:
    """A recorded event counts exactly once, and an epoch closes only with its draw."""
    for kill in range(1, 14):
        phone = Phone(SmallCollector(job, open_before=2))
        phone.joined()
        inner = phone.store
        phone.store = KilledStore(inner, kill, after=after)
        device = phone.start()
        for day in range(4):
            recorded = 0
            for _ in range(2):
                try:
                    device.record("search")
                    recorded += 1
                except Killed:
                    recorded += after
                    device = phone.start()
            phone.wait(DAY)
            for _ in range(2):
                try:
                    device.report()
                except Killed:
                    device = phone.start()
            member = Document.from_text(inner.text).member("searches")
            assert member is not None
            assert member.history is not None
            assert member.history["closed"] == member.epoch == day + 1
            cells = dict(member.history["measures"][0]["cells"])
            assert cells.get(day + 1, 0) == recorded
        assert epochs_of(phone) == [1, 2, 3, 4]
        assert all(len(bodies) == 1 for bodies in phone.collector.drawn.values())


def test_public_group_of_a_device_is_the_group_of_its_attributes() -> None:
    divided = deployed(DIVIDED)
    # In a record, keys are sorted.
    stored = DeployedJob.from_bytes(divided.to_bytes())
    assert isinstance(divided.domain, PanelDomain)
    assert statement_of(stored) == statement_of(divided)
    events = read_statement(statement_of(divided).encode()).events
    assert events is not None
    for platform, arm in product(("ios", "web", "tv"), ("A", "B", "other")):
        values = events.public_values("sessions", {"platform": platform, "arm": arm})
        assert events.group(values) == divided.domain.group_of(values)


def test_public_attributes_are_given_on_joining_and_fixed_until_the_horizon_ends() -> None:
    phone = Phone(SmallCollector(deployed(DIVIDED), open_before=1))
    device = phone.start()
    with pytest.raises(ValueRejectedError, match="divides users by arm, visible to everyone"):
        device.join(attributes={"platform": "ios"})
    assert phone.store.text is None
    device.join(attributes={"platform": "ios", "arm": "B"})
    groups = []
    for day in range(8):
        if day == 1:
            phone.start().join(attributes={"platform": "web", "arm": "A"})
        device.record("open", labels={"platform": "tv", "arm": "A"})
        phone.wait(DAY)
        device.report()
        member = Document.from_text(phone.store.text).member("sessions")
        assert member is not None
        assert member.state is not None
        (group,) = base64.b64decode(member.state["arrays"]["group"]["data"])
        groups.append(group)
    assert groups == [1] * 4 + [3] * 4
