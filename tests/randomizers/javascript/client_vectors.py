"""Golden vectors of whole devices: actions of app and server, sent requests and stored state.

Clients in other languages get the same input and must send the same bytes, store the same document
and spend exactly the same amounts. `tests.randomizers.javascript.vectors` defines the randomness.
Write the file with::

    python -m tests.randomizers.javascript.client_vectors [--check]

If the file is missing, all constants are calibrated again.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import described, restated
from dpstream.pipeline.values.durations import Duration
from dpstream.randomizers.client import Device, DeviceError, Limit, ServerResponse
from dpstream.randomizers.client.amounts import allowed, read, spent, written
from dpstream.randomizers.client.device_errors import ValueRejectedError
from dpstream.randomizers.client.epoch_clock import EpochClock
from dpstream.randomizers.client.event_terms import measure_sentence
from dpstream.randomizers.client.steps import (
    LAST_MOMENT,
    outcome_of,
    seconds_to_start,
    seconds_to_wait,
)
from dpstream.randomizers.client.terms import span_text
from dpstream.randomizers.client.values import DeviceValues
from dpstream.randomizers.measures import Measure
from dpstream.topics.envelopes import decode_body
from dpstream.topics.sealing import device_context, unseal
from tests.randomizers.javascript.vectors import FOLDER, CountedBytes
from tests.support.small_collector import (
    ASKED,
    DAY,
    OPERATOR,
    SETS,
    SIGNER,
    START,
    STREAM,
    MemoryStore,
    SmallCollector,
    deployed,
    description_of,
    problem,
)

FILE: Final = FOLDER / "client" / "client.json"
STAGE: Final = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
KINDS: Final = {
    "StatementError": "statement",
    "LimitError": "limit",
    "NotJoinedError": "not-joined",
    "ClosedError": "closed",
    "ValueRejectedError": "value",
    "StoreError": "store",
    "UnreachableError": "unreachable",
    "DeviceError": "app",
}


def _job(protocol: str, length: str = "1d", **parameters: Any) -> dict[str, Any]:
    epochs = {"count": 4, "start": "2026-03-01", "length": length, "renew": True}
    named = {"name": protocol.replace("_", "-"), "protocol": protocol, "parameters": parameters}
    return {**named, "epochs": epochs, "shuffle": {"minimum": 1000}, "devices": {}}


JOBS: Final[Mapping[str, tuple[dict[str, Any], list[Any]]]] = {
    "future_rand": (STREAM, [True, False, True, True]),
    "value_stream": (_job("value_stream", epsilon=0.1, max_changes=2), [1, 0]),
    "hadamard_values": (
        _job("hadamard_values", "P1M", epsilon=2, max_changes=1, domain=["a", "b", "c"]),
        ["a", None, "c", 2],
    ),
    "range_values": (
        _job("range_values", "P1MT1H", epsilon=2, max_changes=1, low=-1, high=1, buckets=8),
        [-1, 0, 0.999, 0.25],
    ),
    "count_min": (
        _job("count_min", epsilon=1, delta=1e-6, domain=["a", "b", "c"], items=2),
        [["a", "c"], None, "b", [2, 1]],
    ),
    "single_message": (SETS, ["pear", None, 3]),
    "shuffled_counts": (_job("shuffled_counts", epsilon=1, delta=1e-6), [1, 1, 0, 1]),
    "sampled_response": (
        _job("sampled_response", epsilon=2, domain=["a", "b", "c"]),
        ["a", None, "c", 2],
    ),
    "sampled_response of numbers": (
        {**_job("sampled_response", epsilon=2, low=0, high=10, buckets=32), "name": "hours"},
        [9.5, -1, 3.125, 20],
    ),
    "sampled_response of words": (
        {**_job("sampled_response", epsilon=2, domain={"bits": 24}), "name": "words"},
        [1 << 24, None, 7, 5],
    ),
}


def _measured(name: str, protocol: str, measures: dict[str, Any], **more: Any) -> dict[str, Any]:
    delta = {"delta": 1e-6} if "trust" in more else {}
    parameters: dict[str, Any] = {"epsilon": 2, "max_changes": 3, **delta}
    job = _job(protocol, **parameters)
    late = {"shuffle": {"minimum": 1000, "grace": "2d"}, "devices": {"late": "1d"}}
    return {**job, **late, "name": name, "measures": measures, "background": True, **more}


COUNTED: Final = _measured(
    "searches",
    "shuffled_counts",
    {"used": {"type": "count", "within": 3, "event": "search", "buckets": [0, 1, 2, 5]}},
    attributes={
        "plan": {"values": ["free", "pro"]},
        "since": {"first_seen": "2d", "event": ["search"]},
    },
    by=[["plan", "since"]],
    trust="shuffle",
    epochs={"count": 9, "start": "2026-03-01", "length": "1d"},
)
"""Job with a measure that is crossed with private attributes."""
SUMMED: Final = _measured(
    "minutes",
    "value_stream",
    {"long": {"type": "sum", "within": 2, "number": "minutes", "at_least": 30.5}},
)
DIVIDED: Final = {
    **_measured(
        "sessions",
        "panels",
        {
            "active": {"type": "active", "within": 3},
            "minutes": {"type": "sum", "number": "minutes", "mean": {"low": 0, "high": 60}},
        },
        attributes={
            "platform": {"values": ["ios", "web"], "public": True},
            "arm": {"values": ["A", "B"], "public": True},
            "plan": {"values": ["free", "pro"]},
        },
        by=[["platform", "arm"], "arm"],
    ),
}
"""Job with several questions and public groups."""
SPARED: Final = _measured(
    "plans",
    "panels",
    {"active": {"type": "active", "within": 3}},
    attributes={"plan": {"values": ["free", "pro"], "spare": 2}},
    by=["plan"],
)
"""Job whose private attribute has spare cells."""
ASKED_ONCE: Final = {
    **DIVIDED,
    "name": "seldom",
    "protocol": "sampled_panels",
    "measures": {"active": {"type": "active", "within": 3}},
    "by": [["platform", "arm"], "plan"],
}
"""Job whose devices answer once in a horizon, one question with private cells."""
SUMMED_BY_THE_SHUFFLER: Final = {
    **DIVIDED,
    "name": "sums",
    "protocol": "shuffled_panels",
    "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 3},
    "trust": "shuffle",
}
_MEASURES: Final[Mapping[str, dict[str, Any]]] = {
    "active": {"type": "active", "within": 28},
    "count": {"type": "count", "event": ["a", "b"], "buckets": {"low": 0, "high": 8, "buckets": 8}},
    "days": {"type": "days", "within": 28, "event": "search", "buckets": [0, 1, 2, 5]},
    "max": {"type": "max", "number": "score", "scale": 1000000, "buckets": [0, 0.00002, 2.5]},
    "last": {"type": "last", "label": "os", "values": ["ios", "web"]},
    "most": {"type": "most", "within": 7, "label": "os", "values": ["ios", "web"]},
    "lifecycle": {"type": "lifecycle", "within": 28},
    "steps": {"type": "steps", "steps": ["open", "pay"]},
}


@dataclass
class Recorder:
    label: str
    job: DeployedJob
    limit: tuple[float, float] = (4, 1e-3)
    time: int = START
    seconds: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collector, self.store = SmallCollector(self.job, self.time), MemoryStore()
        self.source = CountedBytes(self.label)
        self.requested: list[dict[str, Any]] = []
        self.kept: str | None = None
        self.device = Device(
            "https://example.org",
            self.job.name,
            signers=[SIGNER],
            limit=Limit.of(*self.limit),
            store=self.store,
            transport=self,
            read=self.source.read,
            now=lambda: self.time,
            monotonic=lambda: self.seconds,
            jitter=lambda: 0.5,
        )

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        entry: dict[str, Any] = {"method": method, "path": path}
        if body is not None:
            entry["body"] = base64.b64encode(body).decode()
        self.requested.append(entry)
        answer = self.collector.request(method, path, body, headers)
        entry["status"], entry["text"] = answer.status, answer.body.decode()
        entry["retryAfter"] = answer.headers.get("retry-after")
        return answer

    def does(self, action: str, value: Any = None, ago: int = 0, **options: Any) -> None:
        step: dict[str, Any] = {"do": action, "now": self.time, "seconds": self.seconds}
        if ago:
            step["ago"] = ago
        if value is not None or action == "report":
            step["value"] = value
        if options:
            step["options"] = options
        self.requested = step["requests"] = []
        actions: dict[str, Callable[[], Any]] = {
            "terms": lambda: str(self.device.terms()),
            "join": lambda: self.device.join() and None,
            "join terms": lambda: self.device.join(self.device.terms()) and None,
            "join again": lambda: self.device.join(again=True) and None,
            "join with": lambda: self.device.join(**options) and None,
            "record": lambda: self.device.record(value, **options),
            "attributes": lambda: self.device.attributes(options.get("at"), **value),
            "report events": self.device.report,
            "report": lambda: self.device.report(value, ago=ago),
            "send": self.device.send,
            "leave": self.device.leave,
        }
        try:
            step["result"] = _plain(actions[action]())
        except DeviceError as error:
            step["error"] = KINDS[type(error).__name__]
        step["account"] = str(self.device.account())
        if self.store.text != self.kept:
            assert self.store.text is not None
            step["document"], self.kept = json.loads(self.store.text), self.store.text
        step["taken"] = self.source.taken
        self.steps.append(step)

    def wait(self, milliseconds: int) -> None:
        self.time += milliseconds
        self.collector.time += milliseconds
        self.seconds += milliseconds / 1000

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "job": self.job.name,
            "limit": {"epsilon": self.limit[0], "delta": self.limit[1]},
            "steps": self.steps,
        }


def _plain(result: Any) -> Any:
    if hasattr(result, "sending"):
        after = {} if result.after is None else {"after": result.after}
        plain = {"epoch": result.epoch, "drawn": result.drawn, "sending": _plain(result.sending)}
        return {**plain, **after}
    if hasattr(result, "gone"):
        return {"waiting": result.waiting, "after": result.after, "gone": result.gone}
    return result


def of_protocol(protocol: str, laws: Mapping[str, Any]) -> dict[str, Any]:
    values, given = JOBS[protocol]
    job = deployed(values, constants=laws.get(values["name"]))
    recorder = Recorder(f"client {protocol}", job, (50, 1))
    recorder.does("terms")
    recorder.does("join terms")
    for epoch in range(6):
        recorder.does("report", given[epoch % len(given)])
        months = "P1M" in values["epochs"]["length"]
        recorder.wait(31 * DAY if months else DAY)
    return recorder.to_json()


def of_accidents() -> dict[str, Any]:
    recorder = Recorder("client accidents", deployed())
    collector = recorder.collector
    recorder.does("report", True)
    collector.dead = True
    recorder.does("join")
    collector.dead = False
    recorder.does("join")
    recorder.does("join")
    recorder.does("report", 5)
    recorder.does("report", None)
    collector.answer = lambda _: problem(503, "busy", **{"retry-after": "7"})
    recorder.does("report", True)
    recorder.does("send")
    recorder.seconds += 30
    collector.answer = lambda _: problem(429, "rate")
    recorder.does("send")
    recorder.seconds += 30
    collector.answer = lambda answer: answer
    recorder.does("send")
    recorder.does("report", False)
    recorder.wait(DAY)
    collector.dead = True
    recorder.does("report", False)
    collector.dead = False
    recorder.wait(DAY)
    recorder.does("report", True)
    recorder.time -= 9 * DAY
    recorder.does("report", True)
    recorder.time += 9 * DAY
    collector.dead = True
    recorder.time += DAY
    recorder.does("report", True)
    collector.dead = False
    recorder.seconds += 3600
    recorder.does("send")
    recorder.seconds += 3600
    recorder.does("send")
    recorder.time += 8 * DAY
    recorder.does("send")
    recorder.wait(DAY)
    recorder.does("report", True)
    for number in (2, 2):
        collector.job = deployed(number=number)
        recorder.wait(DAY)
        recorder.does("report", True)
        recorder.does("report", True)
        recorder.does("join")
    recorder.does("leave")
    recorder.does("join")
    recorder.does("join again")
    collector.job = deployed(number=3)
    recorder.does("terms")
    recorder.does("join again")
    recorder.does("report", True)
    for _ in range(3):
        recorder.wait(4 * DAY)
        recorder.does("report", True)
    return recorder.to_json()


def of_lies_about_time(values: dict[str, Any], laws: Mapping[str, Any]) -> dict[str, Any]:
    """Record a server that sends false times from the join on; two charges are allowed."""
    job = deployed(values, constants=laws.get(values["name"]))
    recorder = Recorder(f"client lies {values['name']}", job, (2, 1))
    value = True if values is STREAM else None
    recorder.collector.time += 400 * DAY
    recorder.does("join")
    recorder.collector.time = recorder.time
    for _ in range(6):
        recorder.does("report", value)
        recorder.wait(DAY)
    recorder.collector.time += 1000 * DAY
    recorder.does("report", value)
    recorder.collector.time = recorder.time
    recorder.does("report", value)
    return recorder.to_json()


def of_revisions() -> dict[str, Any]:
    """Record changes of a job's last epoch and outdated descriptions of two deployments."""
    ending = {**STREAM, "epochs": {**STREAM["epochs"], "renew": False}}
    first = described(deployed().model_copy(update={"horizons": 1}), OPERATOR)
    recorder = Recorder("client revisions", first)
    collector = recorder.collector
    recorder.does("terms")
    recorder.does("join")
    recorder.does("report", True)
    recorder.wait(4 * DAY)
    recorder.does("report", True)
    recorder.does("join")
    second = restated(first.model_copy(update={"horizons": 2}), OPERATOR)
    third = restated(second.model_copy(update={"horizons": 3}), OPERATOR)
    for job in (second, third):
        collector.job = job
        recorder.does("terms")
        recorder.does("join")
        recorder.does("report", True)
        recorder.wait(4 * DAY)
    collector.job = second
    recorder.does("join")
    recorder.does("terms")
    collector.job = deployed(ending)
    recorder.does("join")
    collector.job = deployed(number=2, at=START - 1)
    recorder.does("terms")
    recorder.does("join")
    collector.job = deployed(number=3, at=START + 1)
    recorder.does("terms")
    recorder.does("join terms")
    return recorder.to_json()


def of_asked_devices() -> dict[str, Any]:
    """Record enrollments, and values of ended epochs: late, lost, or from before joining."""
    recorder = Recorder("client asked", deployed(ASKED))
    collector = recorder.collector
    collector.open_before = 2
    collector.answer = lambda _: problem(503, "busy")
    recorder.does("join")
    recorder.seconds += 3600
    recorder.does("report", True)
    recorder.wait(DAY)
    recorder.does("report", False, ago=1)
    recorder.seconds += 3600
    recorder.does("report", True)
    collector.answer = lambda answer: answer
    recorder.wait(DAY // 2)
    recorder.does("send")
    recorder.wait(2 * DAY)
    for ago in (3, 2, 1, 1, 0):
        recorder.does("report", bool(ago & 1), ago=ago)
    recorder.wait(4 * DAY)
    recorder.does("report", True, ago=3)
    recorder.does("report", True, ago=2)
    collector.job = deployed(ASKED, number=2, at=recorder.time)
    recorder.does("send")
    recorder.does("report", True)
    recorder.does("join")
    recorder.does("report", True, ago=1)
    recorder.does("report", True)
    return recorder.to_json()


def of_events(laws: Mapping[str, Any]) -> dict[str, Any]:
    """Record events before, in and after their epochs, absences, and another deployment."""
    job = deployed(COUNTED, constants=laws.get("searches"))
    recorder = Recorder("client events", job, (50, 1))
    collector, day = recorder.collector, recorder.time
    collector.open_before = 1
    recorder.does("record", "search")
    recorder.does("terms")
    recorder.does("join terms")
    recorder.does("report", True)
    recorder.does("record", "search", numbers={"minutes": 3}, labels={"plan": "free", "os": "ios"})
    recorder.does("record", "open", number=3, label="web", at=day - 5 * DAY)
    recorder.does("record", "search", at=day + DAY)
    recorder.does("record", "search", labels={"plan": 5})
    recorder.does("report events")
    recorder.does("attributes", {"plan": "pro"})
    recorder.does("attributes", {"since": "2026-03"})
    recorder.wait(DAY)
    recorder.does("report events")
    recorder.does("report events")
    recorder.does("record", "search", at=day + 5)
    recorder.does("attributes", {"plan": "other plan"})
    collector.dead = True
    recorder.wait(DAY)
    recorder.does("report events")
    collector.dead = False
    recorder.seconds += 3600
    recorder.does("send")
    for name in ("search", "open", "search"):
        recorder.does("record", name, at=recorder.time - 1)
    recorder.wait(3 * DAY)
    recorder.does("report events")
    recorder.wait(DAY)
    recorder.does("report events")
    collector.job = deployed(COUNTED, number=2, at=recorder.time, constants=laws.get("searches"))
    recorder.wait(DAY)
    recorder.does("report events")
    recorder.does("record", "search")
    recorder.does("report events")
    recorder.does("join")
    recorder.wait(DAY)
    recorder.does("report events")
    recorder.does("leave")
    recorder.does("record", "search")
    return recorder.to_json()


def of_summed_events(laws: Mapping[str, Any]) -> dict[str, Any]:
    """Record numbers, also such that their sum has no float, until a job ends."""
    job = deployed(SUMMED, constants=laws.get("minutes"))
    recorder = Recorder(
        "client sums", described(job.model_copy(update={"horizons": 1}), OPERATOR), (50, 1)
    )
    recorder.collector.open_before = 1
    recorder.does("join")
    for numbers in ([30.4995], [-1e300, 9e12, 9e12, 1e300], [0.0005, -30.5], []):
        for number in numbers:
            recorder.does("record", "session", number=number)
        recorder.does("record", "session", number=True)
        recorder.does("record", "session", numbers={"minutes": 1e200 if not numbers else 2.5})
        recorder.wait(DAY)
        recorder.does("report events")
    recorder.wait(DAY)
    recorder.does("report events")
    return recorder.to_json()


def of_panels(values: Mapping[str, Any], laws: Mapping[str, Any]) -> dict[str, Any]:
    """Record a device in public groups, one of which changes from the second horizon on."""
    job = deployed(values, constants=laws.get(values["name"]))
    recorder = Recorder(f"client {job.protocol}", job, (50, 1))
    recorder.collector.open_before = 1
    recorder.does("terms")
    recorder.does("join")
    recorder.does("join with", attributes={"platform": "tv", "arm": "B", "more": "text"})
    for epoch in range(10):
        for name in ("open", "close")[: epoch % 3]:
            recorder.does("record", name, number=7.5 * epoch)
        if epoch == 2:
            recorder.does("join with", attributes={"platform": "web"})
            recorder.does("join with", attributes={"platform": "web", "arm": "A"})
        recorder.wait(DAY)
        recorder.does("report events")
    recorder.does("attributes", {"platform": "ios"})
    return recorder.to_json()


def of_names(laws: Mapping[str, Any]) -> dict[str, Any]:
    """Record a device whose job names a value from epoch 4 on, and then contradicts itself."""
    first = deployed(SPARED, constants=laws.get("plans"))
    recorder = Recorder("client names", first, (50, 1))
    collector, revisions = recorder.collector, [first]
    collector.open_before = 1
    recorder.does("terms")
    recorder.does("join")
    for label, start in (("team", 4), ("team", 5), ("club", 4)):
        keys = {"values": ["free", "pro", label], "spare": 1, "named": {label: start}}
        job = deployed(SPARED | {"attributes": {"plan": keys}}, constants=laws.get("plans"))
        told = {"signed_description": first.signed_description}
        revisions.append(restated(job.model_copy(update=told), OPERATOR))
    for epoch in range(6):
        recorder.does("attributes", {"plan": ("team", "free", "club")[epoch % 3]})
        if epoch in (1, 3):
            recorder.does("attributes", {"plan": "team"})
        recorder.wait(DAY)
        if epoch == 2:
            collector.job = revisions[1]
            recorder.does("join terms")
        recorder.does("report events")
    for job in (first, *revisions[2:]):
        collector.job = job
        recorder.does("join terms")
    return recorder.to_json()


def of_strangers() -> dict[str, Any]:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    recorder = Recorder("client strangers", deployed(key=key))
    recorder.does("join")
    for more in ({"population": "everybody"}, {"epochs": {**STREAM["epochs"], "renew": False}}):
        recorder.collector.job = deployed(**more)
        recorder.time = recorder.collector.time = START + 4 * DAY
        recorder.does("join")
    return recorder.to_json()


def sentences() -> list[list[Any]]:
    """List measures as in statements, lengths of epochs, and what users read about them."""
    rows = []
    for measure in map(Measure.from_json, _MEASURES.values()):
        for months, length in ((0, DAY), (1, 0), (0, 7 * DAY), (1, 3_600_000)):

            def span(epochs: int, months: int = months, length: int = length) -> str:
                return span_text(months * epochs, length * epochs)

            rows.append([measure.to_json(), months, length, measure_sentence(measure, span)])
    return rows


def amounts() -> list[list[Any]]:
    """List numbers, digits, rounding directions, and the results in units and as text."""
    numbers = [
        0,
        1,
        0.1,
        1 / 3,
        1e-9,
        1e-10,
        1.5e-7,
        2.5,
        123456.789,
        1e21,
        5e-324,
        0.30000000000000004,
    ]
    rows: list[list[Any]] = []
    for number in numbers:
        for digits in (9, 18):
            for rounded in (spent, allowed):
                units = rounded(number, digits)
                text = written(units, digits)
                assert read(text, digits) == units
                rows.append([number, digits, rounded is spent, str(units), text])
    return rows


def calendars() -> list[dict[str, Any]]:
    """List epochs at instants, for every kind of calendar of jobs."""
    rows = []
    for start, months, exact in (
        ("2024-01-31T00:00", 1, 0),
        ("2024-01-31T22:30", 1, 3_600_000),
        ("2023-12-15T12:00", 12, 0),
        ("1999-02-28T23:59", 5, 86_400_001),
        ("2026-03-01T00:00", 0, 86_400_000),
        ("1960-03-01T00:00", 0, 1),
        ("1960-02-29T00:00", 7, 0),
    ):
        begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
        duration = Duration(months, timedelta(milliseconds=exact))
        first = _milliseconds(begin)
        clock = EpochClock(first, months, exact, 4, 1, None)
        starts = [[epoch, clock.begins(epoch)] for epoch in (-3, 1, 2, 3, 13, 14, 100)]
        moments = [first + day * 86_400_000 + 5 for day in (-90, 0, 27, 28, 29, 30, 31, 365, 3000)]
        moments += [moment + off for _, moment in starts for off in (-1, 0)]
        assert all(_milliseconds(duration.epoch_start(begin, e)) == at for e, at in starts)
        rows.append(
            {
                "epochs": {
                    "start": first,
                    "months": months,
                    "milliseconds": exact,
                    "count": 4,
                    "first": 1,
                    "last": None,
                },
                "begins": starts,
                "at": [[moment, clock.epoch_at(moment)] for moment in moments],
            }
        )
    return rows


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def values() -> list[dict[str, Any]]:
    """List values from apps and their numbers; None if rejected."""
    numbers = {"kind": "numbers", "size": 8, "slots": None, "low": -0.3, "high": 0.4, "buckets": 7}
    told: list[dict[str, Any]] = [
        {"kind": "value", "size": 2, "slots": None},
        {"kind": "items", "size": 4, "slots": None, "labels": ["walk", "bus", "car"]},
        {"kind": "items", "size": 4, "slots": 2, "labels": ["walk", "bus", "car"]},
        {"kind": "found", "size": 2**40, "slots": 1},
        {**numbers, "optional": False},
        {**numbers, "optional": True},
    ]
    given: list[Any] = [True, False, None, 0, 1, 2, 3, 4, -1, 0.5, "walk", "car", "", "x", 2**39]
    given += [[], ["bus"], ["bus", 3], ["bus", 2], [1, 2, 3], [None], -0.3, -0.2, 0.05, 0.1, 0.3999]
    given += [
        0.4,
        1e300,
        -1e300,
        ["car", "bus", 1],
        [3, 3],
        [3, 1, None, "walk"],
        [4],
        ["x", "bus"],
    ]
    rows = []
    for each in told:
        domain = DeviceValues.from_statement(each)
        pairs = []
        for value in given:
            if isinstance(value, list) and each["slots"] is None:
                continue
            try:
                pairs.append([value, domain.number(value)])
            except ValueRejectedError:
                pairs.append([value, None])
        rows.append({"values": each, "numbers": pairs})
    return rows


def edges() -> list[dict[str, Any]]:
    """List bucket edges as decimals, and the adjacent floats, with their bucket numbers."""
    rows = []
    for low, high, buckets, step in ((35.2, 41.6, 64, 1), (0.0, 40.96, 4096, 31)):
        told = {"kind": "numbers", "size": buckets + 1, "slots": None, "low": low, "high": high}
        values = {**told, "buckets": buckets, "optional": False}
        domain = DeviceValues.from_statement(values)
        width = (Decimal(str(high)) - Decimal(str(low))) / buckets
        written = [float(Decimal(str(low)) + width * index) for index in range(0, buckets, step)]
        beside = [math.nextafter(each, end) for each in written for end in (-math.inf, math.inf)]
        numbers = [[each, domain.number(each)] for each in (*written, *beside)]
        rows.append({"values": values, "numbers": numbers})
    return rows


def outcomes() -> list[list[Any]]:
    types: list[Any] = [None, 5, "", "late", "/problems/", "/other/late", "about:blank"]
    types += [f"/problems/{kind}" for kind in ("late", "early", "malformed", "epoch")]
    types += [f"/problems/{kind}" for kind in ("fingerprint", "token", "too-large", "proxy")]
    rows: list[list[Any]] = []
    for status in (0, 200, 202, 301, 400, 401, 403, 404, 409, 410, 413, 415, 429, 500, 503):
        for kind in types:
            begun: list[Any] = [None]
            if status == 409 and kind in ("/problems/early", "/problems/late", "early"):
                begun = [None, 0, START, -1, LAST_MOMENT, LAST_MOMENT + 1, "soon", 0.5, True]
            for begins in begun:
                told = {
                    name: value
                    for name, value in (("type", kind), ("begins", begins))
                    if value is not None
                }
                outcome = outcome_of(status, told)
                rows.append([status, told, outcome.kind, outcome.others, outcome.begins])
    return rows


def pauses_before_epochs() -> list[list[Any]]:
    """List epoch starts, current times, jitters, and the resulting waits in seconds."""
    return [
        [begins, START, jitter, seconds_to_start(begins, START, jitter)]
        for begins in (0, START, START + 1500, START + DAY, START + 2 * DAY)
        for jitter in (0, 0.25, 1)
    ]


def pauses() -> list[list[Any]]:
    return [
        [failures, requested, jitter, seconds_to_wait(failures, requested, jitter)]
        for failures in (1, 2, 7, 13, 60)
        for requested in (None, 0, 20, 10**8)
        for jitter in (0, 0.25, 1)
    ]


def sealed_job() -> DeployedJob:
    return deployed(devices={"seal": STAGE.public_key().public_bytes_raw().hex()})


def opened(body: bytes) -> bytes | None:
    envelopes = decode_body(body)
    report = envelopes.reports[0].tobytes()
    context = device_context(envelopes.deployment, envelopes.fingerprint, envelopes.epoch, report)
    return unseal(envelopes.contents[0].tobytes(), STAGE, context)


def sealed(earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a sealed report of each language, whose ciphertext differs in each run.

    Reports in the file are reused while the job is unchanged; `node sealed_report.js`, in the same
    folder, prints a new one.
    """
    told = description_of(sealed_job()).decode()
    plain = Recorder("client sealed", deployed())
    plain.does("join")
    plain.does("report", True)
    content = decode_body(base64.b64decode(plain.steps[-1]["requests"][-1]["body"])).contents
    bodies = {"body": "", "javascript": ""}
    if earlier is not None and earlier["description"] == told:
        bodies = {name: earlier[name] for name in bodies}
    else:
        recorder = Recorder("client sealed", sealed_job())
        recorder.does("join")
        recorder.does("report", True)
        bodies["body"] = recorder.steps[-1]["requests"][-1]["body"]
    return {
        "label": "client sealed",
        "description": told,
        "privateKey": STAGE.private_bytes_raw().hex(),
        "content": content[0].tobytes().hex(),
        "now": START,
        **bodies,
    }


def signatures() -> dict[str, Any]:
    good = description_of(deployed()).decode()
    parts = json.loads(good)
    statement = base64.b64decode(parts["statement"])
    bad: list[Any] = ["", "{}", "[]", "null", json.dumps({**parts, "signature": ""})]
    changed = base64.b64encode(statement.replace(b'"epsilon":1.0', b'"epsilon":9.0')).decode()
    assert changed != parts["statement"]
    bad.append(json.dumps({**parts, "statement": changed}))
    bare = base64.b64encode(OPERATOR.sign(statement)).decode()
    bad.append(json.dumps({**parts, "signature": bare}))
    bad.append(json.dumps({**parts, "statement": 5}))
    return {"signers": ["00" * 31 + "07", SIGNER], "good": good, "bad": bad}


def laws_of(earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the constants of the jobs in the file, by job name.

    Calibration on another processor can differ in the last digits, so devices are tested with the
    stored constants.
    """
    scenarios = [] if earlier is None else earlier["scenarios"]
    steps = (step for scenario in scenarios for step in scenario["steps"])
    members = (step["document"]["members"] for step in steps if "document" in step)
    joined = (each for some in members for each in some.values() if each is not None)
    statements = (json.loads(each["statement"]) for each in joined)
    return {statement["job"]: statement["law"] for statement in statements}


def client_vectors(earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all vectors; sealed reports and constants are reused from `earlier` vectors."""
    laws = laws_of(earlier)
    return {
        "signer": SIGNER,
        "amounts": amounts(),
        "calendars": calendars(),
        "values": [*values(), *edges()],
        "outcomes": outcomes(),
        "pauses": pauses(),
        "pausesBeforeEpochs": pauses_before_epochs(),
        "sentences": sentences(),
        "signatures": signatures(),
        "sealed": sealed(None if earlier is None else earlier["sealed"]),
        "scenarios": [
            of_accidents(),
            of_asked_devices(),
            of_events(laws),
            of_summed_events(laws),
            of_panels(DIVIDED, laws),
            of_panels(ASKED_ONCE, laws),
            of_panels(SUMMED_BY_THE_SHUFFLER, laws),
            of_names(laws),
            of_strangers(),
            of_revisions(),
            *(of_lies_about_time(values, laws) for values in (STREAM, SETS)),
            *(of_protocol(protocol, laws) for protocol in JOBS),
        ],
    }


def written_vectors() -> str:
    earlier = json.loads(FILE.read_text()) if FILE.exists() else None
    text = json.dumps(client_vectors(earlier), separators=(",", ":"))
    return text.replace('{"do"', '\n{"do"').replace('{"label"', '\n{"label"') + "\n"


def main(arguments: list[str]) -> int:
    text = written_vectors()
    if arguments != ["--check"]:
        Path(FILE).parent.mkdir(exist_ok=True)
        FILE.write_text(text)
        return 0
    differs = FILE.read_text() != text
    if differs:
        print("not what devices send and keep now: client.json", file=sys.stderr)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
