"""What a relay answers: 202 when Kafka has acknowledged all that a request has sent.

``POST /v1/jobs/JOB/TOPIC`` takes a bundle, or a record alone; TOPIC is ``reports``, or that of
another shuffle instance, or of epochs in lanes ``reports/LANE``. What is refused will be refused
again; after 408, 429, 5xx or no answer it is sent again, the same bytes. Answers name no producer
and nothing that was sent.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pipeline.collector.answers import PROBLEM_JSON, Answer, Headers, Problem, dumped, told
from pipeline.collector.http_connection import Slot
from pipeline.collector.http_limits import Request
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.relay.bundling import Bundler, Ready, Sending
from pipeline.relay.intake import part_named, taken
from pipeline.stages.admission import Refusal
from topics.records import Reason

RETRY_SECONDS: Final = 1
HELD_BYTES: Final = 64 << 20
"""Of records that wait, or are on their way to Kafka; with more, gateways are asked to wait."""

_ACCEPTED: Final = Answer(202, b"{}")
_SCHEME: Final = b"bearer "
_CONFLICTS: Final = {Reason.DEPLOYMENT: 410, Reason.FINGERPRINT: 409}


class Scheduler(Protocol):
    """Has bundles written."""

    def write(self, job: str, ready: Sequence[Ready]) -> None:
        """Write them; `Service.settle` is to be called of each."""

    def begin(self) -> None:
        """Something waits: call `Service.flush` in a moment."""


@dataclass(eq=False)
class Relayed:
    """A job whose records are taken.

    Attributes:
        job: as deployed.
        bundler: of its records.
        received: requests whose records were looked at.
        acknowledged: those of them that are in Kafka.
        records: bundled so far.
        bundles: these are in.
        refused: requests, by reason.
    """

    job: DeployedJob
    bundler: Bundler = field(init=False)
    received: int = 0
    acknowledged: int = 0
    records: int = 0
    bundles: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.bundler = Bundler(self.job)


def refused(status: int, kind: str, title: str, *, retry_after: int | None = None) -> Answer:
    """A problem, as of RFC 9457."""
    headers: Headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    body = {"type": f"/problems/{kind}", "title": title, "status": status}
    return Answer(status, dumped(body), PROBLEM_JSON, headers, reason=kind)


def digests_of(tokens: Collection[bytes]) -> tuple[bytes, ...]:
    """What is kept of tokens: they are compared by their SHA-256, in a time that tells nothing."""
    return tuple(hashlib.sha256(token).digest() for token in tokens)


@dataclass(eq=False)
class Service:
    """Answers requests of gateways.

    Attributes:
        scheduler: has bundles written.
        tokens: see `digests_of`; None: whoever reaches it may send.
        jobs: by name; None before they are known.
        ready: whether Kafka takes records, as far as is known.
        stopping: whether no more is taken.
        refused: requests that concern no job that is taken, by reason.
    """

    scheduler: Scheduler
    tokens: tuple[bytes, ...] | None = None
    jobs: Mapping[str, Relayed] | None = None
    ready: Callable[[], bool] = lambda: True
    stopping: bool = False
    refused: Counter[str] = field(default_factory=Counter)
    _slots: dict[Sending, tuple[Relayed, Slot]] = field(default_factory=dict)
    _on_its_way: int = 0

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return len(self._slots)

    def look(self, request: Request) -> Answer | None:
        """Whether a request is refused before its body has come."""
        if request.method != "POST":
            return None
        if self.stopping:
            return self._count(_STOPPING)
        if self.tokens is not None and not self._knows(request.headers.get(b"authorization", b"")):
            return self._count(_TOKEN)
        return None

    def handle(self, request: Request, slot: Slot) -> None:
        """Answer a request, now or when Kafka has what it sent."""
        if request.method == "POST":
            answer = self._post(request, slot)
        elif request.method in ("GET", "HEAD"):
            answer = self._get(request.path)
        else:
            answer = refused(405, "method", "a relay is asked by GET, and sent records by POST")
        if answer is not None:
            slot(answer)

    def flush(self) -> None:
        """Have all written that waits."""
        for name, each in (self.jobs or {}).items():
            self._write(name, each, each.bundler.due())

    def settle(self, ready: Ready, *, acknowledged: bool) -> None:
        """A bundle is written, or nobody knows whether it is."""
        self._on_its_way -= len(ready.value)
        for sending in ready.sendings:
            sending.left -= 1
            sending.failed |= not acknowledged
            if sending.left:
                continue
            relayed, slot = self._slots.pop(sending)
            if sending.failed:
                slot(self._count(_UNAVAILABLE, relayed))
            else:
                relayed.acknowledged += 1
                slot(_ACCEPTED)

    def _count(self, answer: Answer, relayed: Relayed | None = None) -> Answer:
        """A refusal, which is counted."""
        counts = self.refused if relayed is None else relayed.refused
        counts[answer.reason or ""] += 1
        return answer

    def _knows(self, said: bytes) -> bool:
        if said[: len(_SCHEME)].lower() != _SCHEME:
            return False
        (digest,) = digests_of([said[len(_SCHEME) :].strip()])
        # All are compared, wherever it stands.
        return sum(hmac.compare_digest(digest, known) for known in self.tokens or ()) > 0

    def _post(self, request: Request, slot: Slot) -> Answer | None:
        if self.jobs is None:
            return self._count(_NOT_READY)
        start, _, path = request.path.decode("latin-1").partition("/v1/jobs/")
        name, _, part = path.partition("/")
        if start or not part:
            return self._count(_NOTHING)
        relayed = self.jobs.get(name)
        if relayed is None:
            return self._count(_UNKNOWN_JOB)
        named = part_named(relayed.job, part)
        if named is None:
            return self._count(_NOTHING)
        relayed.received += 1
        role, lane = named
        found = taken(relayed.job, role, request.body, lane)
        if isinstance(found, Refusal):
            kind = found.reason.value
            status, title = _CONFLICTS.get(found.reason, 400), _TITLES.get(kind, _MALFORMED)
            return self._count(refused(status, kind, title), relayed)
        if self._held + len(request.body) > HELD_BYTES:
            return self._count(_BUSY, relayed)
        waits = relayed.bundler.held_bytes > 0
        sending, ready = relayed.bundler.add(found)
        self._slots[sending] = relayed, slot
        self._write(name, relayed, ready)
        if relayed.bundler.held_bytes and not waits:
            self.scheduler.begin()
        return None

    @property
    def _held(self) -> int:
        waiting = sum(each.bundler.held_bytes for each in (self.jobs or {}).values())
        return self._on_its_way + waiting

    def _write(self, name: str, relayed: Relayed, ready: Sequence[Ready]) -> None:
        if not ready:
            return
        for each in ready:
            self._on_its_way += len(each.value)
            relayed.records += each.records
            relayed.bundles += 1
        self.scheduler.write(name, ready)

    def _get(self, path: bytes) -> Answer:
        if path == b"/healthz":
            return told({"status": "alive"})
        if path == b"/readyz":
            if self.stopping or self.jobs is None:
                return _NOT_READY
            return told({"status": "ready"}) if self.ready() else _UNAVAILABLE
        return _NOTHING


_STOPPING: Final = refused(503, "stopping", "this relay ends: try again", retry_after=RETRY_SECONDS)
_TOKEN: Final = refused(401, "token", "this relay takes records with a token of its own alone")
_UNKNOWN_JOB: Final = refused(404, "unknown-job", "there is no such job that takes bundles")
_MALFORMED: Final = "a record is not of the form that raw reports have"
_TITLES: Final = {
    Reason.DEPLOYMENT.value: "a record is made for another deployment of this job",
    Reason.FINGERPRINT.value: "a record is made for another form of this job",
    Reason.EPOCH.value: "a record is of an epoch that this job does not have",
}
_NOTHING: Final = refused(404, "not-found", "there is nothing here: POST /v1/jobs/JOB/reports")
_NOT_READY: Final = refused(
    503, "not-ready", "this relay does not know the jobs yet", retry_after=RETRY_SECONDS
)
_UNAVAILABLE: Final = refused(
    503, "unavailable", "Kafka does not take records at present", retry_after=RETRY_SECONDS
)
_BUSY: Final = Problem.BUSY.answer(retry_after=RETRY_SECONDS)
