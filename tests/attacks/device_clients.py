"""Guarantees of a single device's client to its user, against any server.

The server is the adversary. It creates job after job, understates the loss of a mechanism, requests
repeated joins, never responds, and reads what a device sends and what its app logs. The client is
the installed one, with an in-memory server and store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.descriptions import statement_of
from dpstream.randomizers.client import Device, DeviceError, Limit, ServerResponse, UnreachableError
from dpstream.topics.envelopes import IDENTITY_BYTES, decode_body
from tests.attacks.attacked_devices import EPOCHS, device_job, noon
from tests.attacks.promises import broken
from tests.support.small_collector import MemoryStore

_ROOMY: Final = Limit.of(100, 1e-3)
_THIRD: Final = 1 / 3
_ENROLLS: Final = 2 * IDENTITY_BYTES
_NUMBERS: Final = 10**9, 10**18
"""Denominators of epsilon and delta in an account."""
_EPOCH_BY_EPOCH: Final[dict[str, Any]] = {
    "protocol": "single_message",
    "parameters": {
        "domain": ["apple", "pear", "plum"],
        "response": "randomized_response",
        "epsilon": _THIRD,
        "delta": 1e-6,
    },
    "shuffle": {"minimum": 1000},
}


def attack_client() -> Iterator[str]:
    return broken(
        {
            "a device enrolls once per horizon, so that its epochs stay unlinkable": _enrolls,
            "no server makes a device exceed its app's limit": _spends,
            "a device rejects a job that declares less than its mechanism costs": _believes,
            "no epoch is randomized twice after a crash or a new join": _randomizes_again,
            "errors of a device do not depend on the value": _says,
        },
    )


@dataclass
class Server:
    """Collector that stores everything it receives; if `dead`, it does not respond to reports."""

    now: int
    dead: bool = False
    bodies: list[bytes] = field(default_factory=list)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        if body is None:
            return ServerResponse(200, json.dumps({"time": self.now}).encode())
        self.bodies.append(body)
        if self.dead:
            raise UnreachableError("no response")
        return ServerResponse(202, b"{}")


def _started(job: DeployedJob, server: Server, kept: MemoryStore, limit: Limit = _ROOMY) -> Device:
    return Device(
        "https://localhost",
        job.name,
        signers=[],
        limit=limit,
        store=kept,
        transport=server,
        now=lambda: server.now,
        monotonic=lambda: server.now / 1000,
    )


def _joined(job: DeployedJob, limit: Limit = _ROOMY) -> tuple[Server, MemoryStore, Device]:
    """Return a device that has joined at the first epoch."""
    server, kept = Server(noon(job, 1)), MemoryStore()
    device = _started(job, server, kept, limit)
    device.join(statement_of(job).encode())
    return server, kept, device


def _enrolls() -> str:
    job = device_job()
    server, _, device = _joined(job)
    for epoch in range(1, 2 * EPOCHS + 1):
        server.now = noon(job, epoch)
        device.report(epoch % 2 == 0)
    enrolled: Counter[int] = Counter()
    for body in server.bodies:
        envelopes = decode_body(body)
        enrolled[job.epochs.horizon_of(envelopes.epoch)] += int(envelopes.rows[:, _ENROLLS].sum())
    if len(server.bodies) != 2 * EPOCHS or set(enrolled) != {0, 1}:
        return "does not report at every epoch"
    if set(enrolled.values()) != {1}:
        return "a device enrolls twice in a horizon: the tags link its epochs"
    return ""


def _spends() -> str:
    """Deploy two jobs repeatedly: one is charged per horizon, the other per epoch."""
    # This limit is not a sum of losses.
    limit = Limit.of(2.1, 1e-5)
    for changed in ({"parameters": {"epsilon": _THIRD, "max_changes": 2}}, _EPOCH_BY_EPOCH):
        job = device_job(**changed)
        loss = job.guarantee
        server, kept = Server(noon(job, 1)), MemoryStore()
        drawn: set[tuple[bytes, int]] = set()
        last = EPOCHS * 8
        for number in range(2):
            server.bodies.clear()
            again = job.model_copy(
                update={"deployment": bytes([number]) * 16, "deployed_at": job.deployed_at + number}
            )
            device = _started(again, server, kept, limit)
            for epoch in range(1 + number * last // 2, 1 + last):
                server.now = noon(job, epoch)
                try:
                    device.join(statement_of(again).encode())
                    device.report(epoch % 2)
                except DeviceError:
                    break
            for body in server.bodies:
                epoch = decode_body(body).epoch
                stands_for = job.epochs.horizon_of(epoch) if loss.unit == "stream" else epoch
                drawn.add((again.deployment, stands_for))
        account = _started(job, server, kept, limit).account().spent
        for name, each, charged, allowed, unit in zip(
            ("epsilon", "delta"),
            (loss.epsilon, loss.delta),
            (account.epsilon, account.delta),
            (limit.epsilon, limit.delta),
            _NUMBERS,
            strict=True,
        ):
            spent = len(drawn) * Fraction(repr(each))
            if spent > Fraction(allowed, unit):
                return f"repeated jobs make a device exceed its app's limit of {name}"
            if spent > Fraction(charged, unit):
                return f"the account of a device records less {name} than its reports cost"
        if not drawn:
            return "a device does not report although its app's limit allows it"
    return ""


def _believes() -> str:
    for changed in ({}, _EPOCH_BY_EPOCH):
        job = device_job(**changed)
        whole = json.loads(statement_of(job))
        promised = whole["guarantee"]
        other = {"stream": "epoch", "epoch": "stream"}[promised["unit"]]
        lies: list[dict[str, Any]] = [
            {"unit": other},
            *({"epsilon": promised["epsilon"] * share} for share in (0.0, 0.5, 0.999)),
        ]
        if promised["delta"]:
            lies += [{"delta": promised["delta"] * share} for share in (0.0, 0.5, 0.999)]
        for lie in lies:
            text = json.dumps({**whole, "guarantee": {**promised, **lie}}).encode()
            if _accepted(lambda: _started(job, Server(noon(job, 1)), MemoryStore()).join(text)):  # noqa: B023
                (what,) = lie
                return f"a device joins a job that declares another {what} than its mechanism has"
        valid = json.dumps(whole).encode()
        if not _accepted(lambda: _started(job, Server(noon(job, 1)), MemoryStore()).join(valid)):  # noqa: B023
            return "a device rejects a job that declares the cost of its mechanism"
    return ""


def _accepted(act: Callable[[], object]) -> bool:
    try:
        act()
    except DeviceError:
        return False
    return True


def _randomizes_again() -> str:
    job = device_job()
    server, kept, device = _joined(job)
    server.dead = True
    device.report(True)
    # The app restarts and passes another value.
    again = _started(job, server, kept)
    server.now += 3_600_000
    again.report(False)
    if len(set(server.bodies)) > 1:
        return "an epoch is randomized again if its report got no response"
    server.dead = False
    again.leave()
    if _accepted(lambda: again.join(statement_of(job).encode(), again=True)):
        return "a device rejoins a deployment that it left, without its draws"
    return ""


def _says() -> str:
    """Check that errors, which apps log, do not depend on the value to report."""
    job = device_job()
    for accident in (_damaged, _poor, _over, _left):
        outcomes: set[str] = set()
        for value in (True, False):
            server, kept, device = _joined(job, Limit.of(1) if accident is _poor else _ROOMY)
            device.report(True)
            server.now = noon(job, 2)
            accident(job, server, kept, device)
            try:
                device.report(value)
            except DeviceError as error:
                outcomes.add(f"{type(error).__name__}: {error}")
            else:
                outcomes.add("reports")
        if len(outcomes) > 1:
            return "an error, which apps log, depends on the value to report"
    return ""


def _damaged(job: DeployedJob, server: Server, kept: MemoryStore, device: Device) -> None:
    assert kept.text is not None
    document = json.loads(kept.text)
    document["members"][job.name]["state"]["arrays"] = {}
    kept.text = json.dumps(document)


def _poor(job: DeployedJob, server: Server, kept: MemoryStore, device: Device) -> None:
    server.now = noon(job, EPOCHS + 1)


def _over(job: DeployedJob, server: Server, kept: MemoryStore, device: Device) -> None:
    server.now = -1


def _left(job: DeployedJob, server: Server, kept: MemoryStore, device: Device) -> None:
    device.leave()
