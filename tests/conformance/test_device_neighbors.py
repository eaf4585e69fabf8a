"""Everything except report contents is independent of devices' values, from HTTP on.

Real clients report to a real collector's intake, and the shuffler finalizes windows. In two runs,
all devices have different values. The views of the network, an access log, Kafka's operator, and
readers of manifests and heartbeats are compared byte by byte, except for contents.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.actions import Append
from dpstream.pipeline.collector.intake import Intake, IntakeRules
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import described, signer_of
from dpstream.pipeline.jobs.key_files import CollectorKey
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.randomizers.client import Device, Limit, ServerResponse
from dpstream.randomizers.panels import PanelsParameters
from dpstream.topics.envelopes import ENVELOPE_OVERHEAD, HEADER_BYTES, IDENTITY_BYTES
from dpstream.topics.names import Role
from tests.support.device_world import EPOCH, GRACE, DeviceWorld, device_job
from tests.support.small_collector import MemoryStore
from tests.support.world import BEGUN

DEVICES = 6
EPOCHS = 5
SIGNING_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
SEALING_KEY = X25519PrivateKey.from_private_bytes(bytes([7]) * 32)
ITEMS = {"domain": ["a", "b", "c"]}
PROTOCOLS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "count_min": (
        {"epsilon": 2, "delta": 1e-6, **ITEMS},
        [[], ["a"], ["c"], ["a", "b", "c"], ["b", "b"]],
    ),
    "future_rand": ({"epsilon": 4, "max_changes": 2}, [False, True]),
    "hadamard_values": ({"epsilon": 8, "max_changes": 2, **ITEMS}, [None, "a", "c"]),
    "range_values": (
        {"epsilon": 8, "max_changes": 2, "low": 0, "high": 8, "buckets": 8},
        [0, 7, -3, 99],
    ),
    "sampled_response": (
        {"epsilon": 8, "reports": 2, "complete": True, **ITEMS},
        [None, "a", "c"],
    ),
    "sampled_response of numbers": (
        {"epsilon": 8, "low": 0, "high": 8, "buckets": 64},
        [0, 7, -3, 99],
    ),
    "shuffled_counts": ({"epsilon": 2, "delta": 1e-6}, [False, True]),
    "single_message": (
        {"epsilon": 2, "delta": 1e-6, **ITEMS},
        [[], ["a"], ["c"], ["a", "b", "c"], ["b", "b"]],
    ),
    "value_stream": ({"epsilon": 8, "max_changes": 1}, [False, True]),
}


@dataclass
class Run:
    """One run with its observations, and the contents of envelopes, which can differ."""

    world: DeviceWorld
    intake: Intake
    seen: list[object] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    gathered: list[bytes] = field(default_factory=list)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        """Record at least what an access log would contain."""
        job = self.world.job
        answer = self._answer(path, body)
        public = b""
        if body is not None:
            report = HEADER_BYTES + IDENTITY_BYTES
            content = HEADER_BYTES + ENVELOPE_OVERHEAD
            # The id of a report is drawn after its messages, from the same generator; on a
            # device it is random.
            public = body[:report] + body[report + IDENTITY_BYTES : content]
            self.contents.append(body[content:])
        size = len(body or b"")
        self.seen.append((method, path, dict(headers), size, public, answer.status, answer.body))
        assert job.signed_description is not None
        return answer

    def _answer(self, path: str, body: bytes | None) -> ServerResponse:
        job, now = self.world.job, self.world.broker_time()
        assert job.signed_description is not None
        if body is None:
            response: object = (
                {"time": now} if path.endswith("/time") else job.signed_description.encoded()
            )
            return ServerResponse(200, json.dumps(response).encode())
        rules = self.intake.rules(body)
        assert isinstance(rules, IntakeRules)
        rejection = rules.rejection(len(body), now)
        assert rejection is None
        (rejection,) = self.intake.take(rules, [body], [None]).rejections
        assert rejection is None
        self.gathered.append(body)
        return ServerResponse(202, b'{"accepted":1}')

    def write(self) -> None:
        rules = self.intake.rules(self.gathered[0])
        assert isinstance(rules, IntakeRules)
        taken = self.intake.take(rules, self.gathered, [None] * len(self.gathered))
        for record in taken.enrollments:
            self.seen.append(("enrollments", record))
            self.world.log.append(Append(Role.DEVICES, 0, record))
        for record in taken.batches:
            self.seen.append(("batch", len(record), record[: HEADER_BYTES // 2]))
            self.world.log.append(
                Append(Role.REPORTS, self.world.job.topics.partition_of(rules.epoch), record)
            )
        self.gathered.clear()


def coins(number: int) -> Any:
    """Return the random bytes of a device, which are the same in both runs at first."""
    return random.Random(number).randbytes


def started(job: DeployedJob, keys: Sequence[X25519PrivateKey]) -> tuple[Run, list[Device]]:
    key = CollectorKey(bytes(32))
    job = described(job.model_copy(update={"collector_key": key.digest}), SIGNING_KEY)
    world = DeviceWorld(job, keys=KeyRing.of(keys))
    seen = Run(world, Intake(job, key))
    return seen, [
        Device(
            "https://example.org",
            job.name,
            signers=[signer_of(SIGNING_KEY).hex()],
            limit=Limit.of(1_000, 0.5),
            store=MemoryStore(),
            transport=seen,
            read=coins(number),
            now=lambda: BEGUN + int(1000 * world.now),
            jitter=lambda: 0.5,
        )
        for number in range(DEVICES)
    ]


def run(protocol: str, values: list[list[Any]], *, sealed: bool, minimum: int) -> Run:
    parameters, _ = PROTOCOLS[protocol]
    keys = (SEALING_KEY,) if sealed else ()
    shuffle = {"minimum": minimum, "grace": "PT40S"}
    name = protocol.partition(" of ")[0]
    seen, devices = started(device_job(name, parameters, EPOCHS, keys, shuffle=shuffle), keys)
    world = seen.world
    for epoch in range(1, EPOCHS + 1):
        world.at(epoch, 10)
        for number, device in enumerate(devices):
            # Presence is public: the last device is absent at one epoch.
            if number == DEVICES - 1 and epoch == 3:
                continue
            device.join()
            device.report(values[number][epoch - 1])
            seen.seen.append(str(device.account()))
        seen.write()
        world.settle(("shuffle",))
        seen.seen.append(world.worker("shuffle").stage.heartbeat())
    return finished(seen, EPOCHS + 1, GRACE)


def finished(seen: Run, epoch: int, grace: float) -> Run:
    world = seen.world
    world.at(epoch, 1)
    world.settle(("shuffle",))
    world.now += grace + EPOCH / 100
    world.settle(("shuffle",))
    seen.seen.append(world.worker("shuffle").stage.heartbeat())
    seen.seen.append(world.log.values(Role.MANIFESTS))
    seen.seen.append(world.log.values(Role.DEAD_LETTERS))
    return seen


def with_events(protocol: str, *, sealed: bool) -> tuple[Run, list[Device]]:
    keys = (SEALING_KEY,) if sealed else ()
    measures: dict[str, Any] = {"often": {"type": "count", "within": 2, "at_least": 2}}
    more: dict[str, Any] = {}
    if protocol == "panels":
        measures["spent"] = {"type": "sum", "number": "amount", "mean": {"low": 0, "high": 9}}
        more = {"attributes": {"os": {"values": ["ios"], "public": True}}, "by": ["os"]}
        more["by_minimum"] = 1
    parameters = {"epsilon": 8, **({} if protocol == "sampled_response" else {"max_changes": 2})}
    devices: dict[str, Any] = {"late": "PT100S"}
    if sealed:
        devices["seal"] = [public_bytes(SEALING_KEY).hex()]
    job = device_job(
        *(protocol, parameters, EPOCHS),
        shuffle={"minimum": 2, "grace": "PT200S"},
        devices=devices,
        background=True,
        **{"measures": measures, **more},
    )
    return started(job, keys)


def run_with_events(protocol: str, events: random.Random | None, *, sealed: bool) -> Run:
    """Run devices that record events, or have none, and report at times drawn beforehand."""
    seen, all_devices = with_events(protocol, sealed=sealed)
    schedule = random.Random(7)
    for epoch in range(1, EPOCHS + 2):
        seen.world.at(epoch, 2)
        for number, device in enumerate(all_devices):
            device.join(attributes={"os": ("ios", "tv")[number % 2]})
        for second in sorted(schedule.sample(range(3, 90), DEVICES)):
            seen.world.at(epoch, second)
            # Presence is public: one device reports nothing during one epoch.
            device = all_devices[schedule.randrange(DEVICES)]
            for _ in range(events.randrange(9) if events else 0):
                device.record("use", number=float(events.randrange(12) if events else 0))
            if schedule.random() < 0.8:
                report = device.report()
                seen.seen.append((second, report.epoch, report.drawn, report.after))
            seen.seen.append(str(device.account()))
        if seen.gathered:
            seen.write()
        seen.world.settle(("shuffle",))
        seen.seen.append(seen.world.worker("shuffle").stage.heartbeat())
    return finished(seen, EPOCHS + 2, 2 * EPOCH)


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("protocol", ["value_stream", "sampled_response", "panels"])
def test_observations_do_not_depend_on_recorded_events(protocol: str, sealed: bool) -> None:
    one, other, without = (
        run_with_events(protocol, events, sealed=sealed)
        for events in (random.Random(1), random.Random(2), None)
    )
    assert one.seen == other.seen == without.seen
    assert one.contents != without.contents
    assert len({len(content) for content in (*one.contents, *without.contents)}) == 1


def test_devices_count_in_the_groups_with_which_they_joined() -> None:
    seen, devices = with_events("panels", sealed=True)
    world = seen.world
    for epoch in range(1, EPOCHS + 2):
        world.at(epoch, 2)
        for number, device in enumerate(devices):
            device.join(attributes={"os": ("ios", "tv", "web")[number % 3]})
            device.record("use", number=5.0)
            device.report()
        if seen.gathered:
            seen.write()
    finished(seen, EPOCHS + 2, 2 * EPOCH)
    world.settle()
    rows = [
        (row.measure, row.attributes.get("os"))
        for row in cast(PanelsParameters, world.job.parameters).rows
    ]
    assert list(world.published()) == [*range(1, EPOCHS + 1)]
    for record in world.published().values():
        assert isinstance(record.estimate, PanelEstimates)
        sizes = dict(zip(rows, record.estimate.sizes.tolist(), strict=True))
        assert sizes == {
            (measure, system): devices
            for measure in ("often", "spent")
            for system, devices in ((None, DEVICES), ("ios", DEVICES // 3), ("other", 4))
        }
        heads = dict(zip(rows, record.estimate.heads.tolist(), strict=True))
        assert heads["often", None] + heads["spent", None] == DEVICES


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_observations_do_not_depend_on_device_values(protocol: str, sealed: bool) -> None:
    _, domain = PROTOCOLS[protocol]
    rng = random.Random(3)
    first = [[rng.choice(domain) for _ in range(EPOCHS)] for _ in range(DEVICES)]
    following = dict(zip(map(str, domain), [*domain[1:], domain[0]], strict=True))
    second = [[following[str(value)] for value in row] for row in first]
    # Windows are released, and some are suppressed where the protocol allows it.
    one, other = (
        run(protocol, values, sealed=sealed, minimum=100 if domain[0] == [] else 2)
        for values in (first, second)
    )
    assert len(one.seen) == len(other.seen)
    for left, right in zip(one.seen, other.seen, strict=True):
        assert left == right
    # Randomized contents depend on values.
    assert one.contents != other.contents
    assert {len(content) for content in one.contents} == {
        len(content) for content in other.contents
    }
    assert len({len(content) for content in one.contents}) == 1
