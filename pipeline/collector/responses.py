"""Answers from a collector: small JSON objects, and problem details (RFC 9457).

A problem's title is a fixed sentence, without IDs, tokens, addresses or report contents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Final

JSON: Final = "application/json"
PROBLEM_JSON: Final = "application/problem+json"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The part of an HTTP answer that does not depend on the connection."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Headers = ()
    reason: str | None = None


class RequestProblem(Enum):
    """Reason to reject a request: the last path segment of the problem's type, status and title."""

    MALFORMED = ("malformed", 400, "the body is not in the format of this job's reports")
    TWICE = ("malformed", 400, "two envelopes from one device: send only one per epoch")
    SEALED = ("malformed", 400, "the contents are not sealed as this job requires")
    FOREIGN = ("malformed", 400, "a report has messages that this job's protocol does not have")
    EPOCH = ("epoch", 400, "this job has no such epoch")
    SEVERAL = (
        "token",
        403,
        "with a token, a body must contain one envelope, from the token's subject",
    )
    NO_TOKEN = ("token", 401, "this job accepts reports only with a bearer token")
    TOKEN = ("token", 401, "the token is invalid or expired: get a new one")
    ORIGIN = ("origin", 403, "pages of this origin are not allowed to report here")
    NO_JOB = ("unknown-job", 404, "no job of this name collects reports from devices")
    NOT_FOUND = ("not-found", 404, "not found: see /v1/openapi.json")
    METHOD = ("method", 405, "method not allowed")
    TIMEOUT = ("timeout", 408, "the request was not complete in time")
    LATE = ("late", 409, "reports for this epoch are no longer accepted")
    EARLY = ("early", 409, "this epoch has not started")
    FINGERPRINT = ("fingerprint", 409, "the job has another fingerprint: fetch its description")
    DEPLOYMENT = (
        "deployment",
        410,
        "another deployment of this job is running: fetch its description",
    )
    TOO_LARGE = ("too-large", 413, "the body is too large")
    URI = ("uri", 414, "the path is too long")
    MEDIA_TYPE = ("media-type", 415, "the content type must be application/vnd.dpstream.reports")
    EXPECTATION = ("expectation", 417, "the only supported expectation is 100-continue")
    RATE = ("rate", 429, "too many requests from this address: try again later")
    HEADERS = ("headers", 431, "the request head is too large")
    INTERNAL = ("internal", 500, "the collector failed: send the request again")
    BUSY = ("busy", 503, "too many reports are waiting: try again later")
    UNAVAILABLE = ("unavailable", 503, "reports cannot be stored now: try again later")
    STOPPING = ("stopping", 503, "this collector is shutting down: try another one")
    DRAINED = ("drained", 503, "this job accepts no reports now: try again later")
    NOT_READY = ("not-ready", 503, "this collector does not know the time yet")

    @property
    def kind(self) -> str:
        return str(self.value[0])

    def answer(
        self, *, retry_after: int | None = None, headers: Headers = (), **more: object
    ) -> HttpResponse:
        """Return the problem as an answer with `more` members, which must be public facts."""
        kind, status, title = self.value
        body = {"type": f"/problems/{kind}", "title": title, "status": status, **more}
        if retry_after is not None:
            headers = (*headers, ("Retry-After", str(retry_after)))
        return HttpResponse(status, dumped(body), PROBLEM_JSON, headers, reason=self.name.lower())


def dumped(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@lru_cache(1024)
def accepted(envelopes: int, epoch: int) -> HttpResponse:
    return HttpResponse(202, dumped({"accepted": envelopes, "epoch": epoch}))


def json_response(value: Mapping[str, object]) -> HttpResponse:
    return HttpResponse(200, dumped(value))


STATUS_LINES: Final[Mapping[int, bytes]] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def written(answer: HttpResponse, more: Headers, *, close: bool, body: bool = True) -> bytes:
    """Return an answer's bytes after the status line; `body` is False for HEAD."""
    length = None if answer.status == HTTPStatus.NO_CONTENT else len(answer.body)
    head = _head(answer.headers, more, answer.content_type, length, close)
    return head + answer.body if body else head


@lru_cache(1024)
def _head(
    headers: Headers, more: Headers, content_type: str, length: int | None, close: bool
) -> bytes:
    lines = [
        *headers,
        *more,
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if length is not None:
        lines += [("Content-Type", content_type), ("Content-Length", str(length))]
    if close:
        lines.append(("Connection", "close"))
    text = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{text}\r\n".encode("ascii")
