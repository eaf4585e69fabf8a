"""Answer a collector's requests, without I/O except for passing reports to a `BatchWriter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

from dpstream.pipeline.addresses import Network, is_within
from dpstream.pipeline.collector.batch_writer import RETRY_SECONDS, BatchWriter
from dpstream.pipeline.collector.http_connection import Slot
from dpstream.pipeline.collector.http_limits import HttpRequest, Rates
from dpstream.pipeline.collector.responses import (
    Headers,
    HttpResponse,
    RequestProblem,
    json_response,
)
from dpstream.pipeline.collector.tokens import TokenCheck, TokenError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.topics.envelopes import CONTENT_TYPE

_JOBS: Final = b"/v1/jobs"
_REPORTS: Final = b"reports"
_CONTENT_TYPE: Final = CONTENT_TYPE.encode()
_TOLD: Final = (b"", b"time")
_OPENAPI: Final = b"/v1/openapi.json"
_ALIVE: Final = b"/healthz"
_READY: Final = b"/readyz"
_INTERFACE: Final = HttpResponse(200, files(__package__).joinpath("openapi.json").read_bytes())
_PATHS: Final = frozenset({_JOBS, _OPENAPI, _ALIVE, _READY})
_ALLOWED_FOR: Final = 86_400
_DRAINED_SECONDS: Final = 60
_NOT_INFORMED: Final = RequestProblem.NOT_READY.answer(retry_after=1)


@dataclass(eq=False)
class Served:
    """A job whose reports the collector accepts, from any device if there are no `tokens`."""

    job: DeployedJob
    batch_writer: BatchWriter
    tokens: TokenCheck | None
    phase: Phase = Phase.RUNNING

    def __post_init__(self) -> None:
        described = self.job.signed_description
        assert described is not None
        self.description = json_response(described.encoded())


@dataclass(frozen=True, slots=True)
class Access:
    """Origins of pages that may report (``*`` for all), and networks of trusted proxies."""

    origins: frozenset[str] = frozenset()
    proxies: tuple[Network, ...] = ()

    def allows(self, origin: bytes) -> bool:
        return origin.isascii() and ("*" in self.origins or origin.decode() in self.origins)

    def is_proxy(self, address: str) -> bool:
        return bool(self.proxies) and is_within(address, self.proxies)

    def address_of(self, request: HttpRequest) -> str:
        """Return the client's address; behind trusted proxies, the last other one in the header."""
        address = request.peer
        said = request.headers.get(b"x-forwarded-for", b"")
        while said and self.is_proxy(address):
            said, _, last = said.rpartition(b",")
            address = last.strip().decode("latin-1") or address
        return address


@dataclass(eq=False)
class Service:
    """Answer the requests to a collector.

    `jobs` is replaced atomically; `informed` is True once it was set. `kafka_answers` returns
    whether Kafka answered recently. `rejected` is called with the reason for each rejection without
    a job.
    """

    clock: BrokerClock
    access: Access = field(default_factory=Access)
    rates: Rates | None = None
    jobs: Mapping[str, Served] = field(default_factory=dict)
    unserved: frozenset[str] = frozenset()
    informed: bool = False
    stopping: bool = False
    kafka_answers: Callable[[], bool] = lambda: True
    rejected: Callable[[str], None] = lambda reason: None

    def look(self, request: HttpRequest) -> HttpResponse | None:
        """Return a rejection that does not depend on the body, or None."""
        if self.stopping and request.method == "POST":
            return self._rejected(RequestProblem.STOPPING.answer(retry_after=RETRY_SECONDS))
        if self.rates is not None:
            seconds = self.rates.wait(self.access.address_of(request))
            if seconds:
                return self._rejected(RequestProblem.RATE.answer(retry_after=seconds))
        return None

    def allowed(self, request: HttpRequest) -> Headers:
        """Return the headers that make a browser pass the answer to the requesting page."""
        origin = request.headers.get(b"origin")
        origins = self.access.origins
        if origin is None or not origins:
            return ()
        # Pages send no credentials stored by a browser, so all origins can be allowed.
        varies = () if "*" in origins else (("Vary", "Origin"),)
        if not self.access.allows(origin):
            return varies
        return (
            ("Access-Control-Allow-Origin", origin.decode() if varies else "*"),
            ("Access-Control-Expose-Headers", "Retry-After"),
            *varies,
        )

    def handle(self, request: HttpRequest, slot: Slot) -> None:
        if request.method == "POST":
            answer = self._post(request, slot)
        elif request.method in ("GET", "HEAD"):
            answer = self._get(request.path)
        elif request.method == "OPTIONS":
            answer = self._preflight(request)
        else:
            answer = _method_or_nothing(request.path)
        if answer is not None:
            slot(answer)

    def _rejected(self, answer: HttpResponse) -> HttpResponse:
        self.rejected(answer.reason or "")
        return answer

    def _post(self, request: HttpRequest, slot: Slot) -> HttpResponse | None:
        job, what = _place(request.path)
        if job is None or what != _REPORTS:
            return _method_or_nothing(request.path)
        served = self.jobs.get(job)
        if served is None:
            return self._rejected(self._no_job(job))
        batch_writer = served.batch_writer
        if request.headers.get(b"content-type", b"").lower() != _CONTENT_TYPE:
            return _counted(batch_writer, RequestProblem.MEDIA_TYPE.answer())
        subject = None
        if served.tokens is not None:
            try:
                subject = served.tokens.subject(request.headers.get(b"authorization"))
            except TokenError as error:
                return _counted(batch_writer, error.answer)
        if served.phase in (Phase.DRAINING, Phase.DRAINED):
            return _counted(
                batch_writer, RequestProblem.DRAINED.answer(retry_after=_DRAINED_SECONDS)
            )
        now = self.clock.now()
        if now is None:
            return _counted(batch_writer, RequestProblem.NOT_READY.answer(retry_after=1))
        rejection = batch_writer.offer(request.body, subject, now, slot)
        if self.rates is not None and rejection is None:
            more = batch_writer.reports(request.body) - 1
            self.rates.charge(self.access.address_of(request), more)
        return rejection

    def _no_job(self, name: str) -> HttpResponse:
        # A device must not conclude that its job has ended.
        if not self.informed:
            return _NOT_INFORMED
        if name in self.unserved:
            return RequestProblem.UNAVAILABLE.answer(retry_after=_DRAINED_SECONDS)
        return RequestProblem.NO_JOB.answer()

    def _get(self, path: bytes) -> HttpResponse:
        if path == _JOBS:
            return json_response({"jobs": sorted(self.jobs)}) if self.informed else _NOT_INFORMED
        if path == _OPENAPI:
            return _INTERFACE
        if path == _ALIVE:
            return json_response({"status": "alive"})
        if path == _READY:
            return self._readiness()
        job, what = _place(path)
        if job is None or what not in _TOLD:
            return _method_or_nothing(path)
        served = self.jobs.get(job)
        if served is None:
            return self._no_job(job)
        return served.description if not what else self._time(served)

    def _time(self, served: Served) -> HttpResponse:
        now = self.clock.now()
        if now is None:
            return RequestProblem.NOT_READY.answer(retry_after=1)
        return json_response({"time": now, "epoch": served.batch_writer.intake.times.epoch_of(now)})

    def _readiness(self) -> HttpResponse:
        if self.stopping:
            return RequestProblem.STOPPING.answer(retry_after=RETRY_SECONDS)
        if not self.informed or self.clock.now() is None:
            return RequestProblem.NOT_READY.answer(retry_after=1)
        if not self.kafka_answers():
            return RequestProblem.UNAVAILABLE.answer(retry_after=RETRY_SECONDS)
        return json_response({"status": "ready"})

    def _preflight(self, request: HttpRequest) -> HttpResponse:
        methods = _methods(request.path)
        if methods is None:
            return RequestProblem.NOT_FOUND.answer()
        origin = request.headers.get(b"origin")
        if origin is None or b"access-control-request-method" not in request.headers:
            return HttpResponse(204, b"", headers=(("Allow", methods),))
        if not self.access.allows(origin):
            return RequestProblem.ORIGIN.answer()
        return HttpResponse(
            204,
            b"",
            headers=(
                ("Access-Control-Allow-Methods", methods),
                ("Access-Control-Allow-Headers", "Authorization, Content-Type"),
                ("Access-Control-Max-Age", str(_ALLOWED_FOR)),
            ),
        )


def _counted(batch_writer: BatchWriter, answer: HttpResponse) -> HttpResponse:
    batch_writer.reject(answer)
    return answer


def _place(path: bytes) -> tuple[str | None, bytes]:
    parts = path.split(b"/")
    if not 4 <= len(parts) <= 5 or parts[:3] != [b"", b"v1", b"jobs"] or not all(parts[3:]):
        return None, b""
    try:
        job = parts[3].decode("ascii")
    except UnicodeDecodeError:
        return None, b""
    return job, parts[4] if len(parts) == 5 else b""


def _method_or_nothing(path: bytes) -> HttpResponse:
    methods = _methods(path)
    if methods is None:
        return RequestProblem.NOT_FOUND.answer()
    return RequestProblem.METHOD.answer(headers=(("Allow", methods),))


def _methods(path: bytes) -> str | None:
    job, what = _place(path)
    if job is not None and what == _REPORTS:
        return "POST, OPTIONS"
    if path in _PATHS or (job is not None and what in _TOLD):
        return "GET, HEAD, OPTIONS"
    return None
