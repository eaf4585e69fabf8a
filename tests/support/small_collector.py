"""In-memory collector for client tests, which can be correct, dead, slow or malicious."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.descriptions import described, signer_of
from dpstream.pipeline.jobs.job_files import make_job, validate
from dpstream.randomizers.client import ServerResponse, UnreachableError
from dpstream.topics.envelopes import decode_body

OPERATOR = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = signer_of(OPERATOR).hex()
DAY = 86_400_000
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)

STREAM: dict[str, Any] = {
    "name": "logins",
    "protocol": "future_rand",
    "parameters": {"epsilon": 1, "max_changes": 2},
    "epochs": {"count": 4, "start": "2026-03-01", "length": "1d", "renew": True},
    "devices": {},
}
"""Job that spends its epsilon once in four days."""
SETS: dict[str, Any] = {
    "name": "fruits",
    "protocol": "single_message",
    "parameters": {
        "domain": ["apple", "pear", "plum"],
        "response": "randomized_response",
        "epsilon": 1,
        "delta": 1e-6,
    },
    "epochs": {"count": 4, "start": "2026-03-01", "length": "1d", "renew": True},
    "shuffle": {"minimum": 1000},
    "devices": {},
}
"""Job that spends its epsilon at every epoch."""
ASKED: dict[str, Any] = {
    "name": "visits",
    "protocol": "sampled_response",
    "parameters": {"epsilon": 1},
    "epochs": {"count": 4, "start": "2026-03-01", "length": "1d", "renew": True},
    "shuffle": {"grace": "4d"},
    "devices": {"late": "2d"},
}
"""Job that asks each device once in four days, and accepts answers for two more days."""
MEASURED: dict[str, Any] = {
    "name": "searches",
    "protocol": "value_stream",
    "parameters": {"epsilon": 1, "max_changes": 2},
    "measures": {"often": {"type": "count", "within": 2, "event": "search", "at_least": 2}},
    "epochs": {"count": 4, "start": "2026-03-01", "length": "1d", "renew": True},
    "shuffle": {"grace": "4d"},
    "devices": {"late": "2d"},
    "background": True,
}
"""Job that computes its answers from events, and accepts answers for two more days."""


def deployed(
    values: Mapping[str, Any] = STREAM,
    *,
    number: int = 1,
    at: int = START,
    key: Ed25519PrivateKey = OPERATOR,
    constants: Mapping[str, Any] | None = None,
    **more: Any,
) -> DeployedJob:
    """Build a deployed job with a signed description; calibrate it unless constants are given."""
    job = make_job({**values, **more})
    fresh = deploy_job(job, deployed_at=at, deployment=number.to_bytes(16, "big"))
    if constants is not None:
        then = {**json.loads(fresh.to_bytes()), "constants": constants}
        fresh = validate(DeployedJob, {**then, "fingerprint": fingerprint_of(then).hex()})
    return described(fresh, key)


def description_of(job: DeployedJob) -> bytes:
    told = job.signed_description
    assert told is not None
    return json.dumps(told.encoded()).encode()


def problem(status: int, kind: str, *, begins: object = None, **headers: str) -> ServerResponse:
    told = {"type": f"/problems/{kind}", "status": status}
    more = {} if begins is None else {"begins": begins}
    return ServerResponse(status, json.dumps({**told, **more}).encode(), headers)


@dataclass
class SmallCollector:
    """Collector of one running deployment, in one thread.

    Attributes:
        time: Server clock in milliseconds since 1970.
        answer, tell: Functions that alter the correct response to a report or time request.
        open_before: Number of epochs before the current one whose reports are accepted.
        taken: Acknowledged reports by epoch and device; `enrolled` has the acknowledged enrollments
            of jobs in which these precede reports.
        received, drawn: All bodies, by report id, and by deployment, epoch and device.
    """

    job: DeployedJob
    time: int = START
    answer: Callable[[ServerResponse], ServerResponse] = lambda answer: answer
    tell: Callable[[int], object] = lambda time: time
    dead: bool = False
    open_before: int = 0
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    taken: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    enrolled: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    received: dict[bytes, bytes] = field(default_factory=dict)
    drawn: dict[tuple[bytes, int, bytes], set[bytes]] = field(default_factory=dict)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        self.requests.append((method, path, dict(headers), body or b""))
        if self.dead:
            raise UnreachableError("no server responds")
        root = f"/v1/jobs/{self.job.name}"
        if (method, path) == ("GET", root):
            return ServerResponse(200, description_of(self.job))
        if (method, path) == ("GET", f"{root}/time"):
            return ServerResponse(200, json.dumps({"time": self.tell(self.time)}).encode())
        if (method, path) == ("POST", f"{root}/reports"):
            assert body is not None
            return self.answer(self._take(body))
        return problem(404, "unknown-job")

    @property
    def epoch(self) -> int:
        start, length = self.job.epochs.start, self.job.epochs.length
        assert start is not None
        assert length is not None
        return length.epoch_of(start, datetime.fromtimestamp(self.time / 1000, UTC))

    def _take(self, body: bytes) -> ServerResponse:
        envelopes = decode_body(body)
        device, report = envelopes.devices[0].tobytes(), envelopes.reports[0].tobytes()
        # The collector has seen the draw, regardless of its response.
        drawn, taken = self.drawn, self.taken
        if not envelopes.has_report[0]:
            drawn, taken = {}, self.enrolled
        drawn.setdefault((envelopes.deployment, envelopes.epoch, device), set()).add(body)
        assert self.received.setdefault(report, body) == body
        if envelopes.deployment != self.job.deployment:
            return problem(410, "deployment")
        if envelopes.epoch < self.epoch - self.open_before:
            return problem(409, "late")
        if envelopes.epoch > self.epoch:
            start = self.job.epochs.start
            length = self.job.epochs.length
            assert start is not None
            assert length is not None
            begins = length.epoch_start(start, envelopes.epoch)
            return problem(409, "early", begins=int(begins.timestamp() * 1000))
        taken.setdefault((envelopes.epoch, device), body)
        return ServerResponse(202, json.dumps({"accepted": 1, "epoch": envelopes.epoch}).encode())


@dataclass
class MemoryStore:
    """State of a device across its processes."""

    revision: int = 0
    text: str | None = None

    def read(self) -> tuple[int, str | None]:
        return self.revision, self.text

    def replace(self, revision: int, text: str) -> bool:
        if revision != self.revision:
            return False
        self.revision, self.text = revision + 1, text
        return True
