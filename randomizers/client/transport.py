"""Requests to a collector: HTTP with the standard library, or a transport supplied by the app."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from dpstream.randomizers.client.device_errors import UnreachableError

ANSWER_MAX: Final = 8 * 1024 * 1024
"""Maximum size of a response, in bytes; a longer response raises `UnreachableError`."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """Response of a server; header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Sender of requests to a collector, for example an OHTTP client."""

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        """Send a GET or POST request once; raise `UnreachableError` without a response."""


class HttpTransport:
    """Transport over HTTPS.

    Args:
        url: URL of the collector, such as ``https://reports.example.org``.
        timeout: Approximate maximum duration of a request, in seconds.
        plain: True to allow unencrypted HTTP to other machines, if other means protect it.

    Raises:
        ValueError: If the URL is invalid or unencrypted.
    """

    def __init__(self, url: str, timeout: float = 30.0, *, plain: bool = False) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"{url!r} is not a collector address; expected one like https://reports.example.org"
            )
        if parts.scheme == "http" and not plain and parts.hostname not in _LOOPBACK:
            raise ValueError(f"{url} is not encrypted; expected an address that starts with https")
        self._url, self._timeout = url.rstrip("/"), timeout
        self._opener = urllib.request.build_opener(_NoRedirects)

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> ServerResponse:
        """See `Transport.request`."""
        request = urllib.request.Request(
            self._url + path,
            body,
            {"User-Agent": "dpstream-device", **headers},
            method=method,
        )
        deadline = time.monotonic() + self._timeout
        try:
            with contextlib.closing(self._answer(request)) as response:
                parts, size = [], 0
                while part := response.read1(65_536):
                    parts.append(part)
                    size += len(part)
                    if size > ANSWER_MAX:
                        raise UnreachableError("the server's response is too long")
                    if time.monotonic() > deadline:
                        raise UnreachableError("the server's response took too long: try again")
                fields = {name.lower(): value for name, value in response.headers.items()}
                return ServerResponse(response.status, b"".join(parts), fields)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The error's text can contain the address.
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise UnreachableError(
                f"no response from the server ({type(reason).__name__}): try again later"
            ) from None

    def _answer(self, request: urllib.request.Request) -> Any:
        try:
            return self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            return error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that does not follow redirects: reports and tokens go to no other server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,
        code: int,
        msg: str,
        headers: Message[str, str],
        newurl: str,
    ) -> None:
        """Return None, so that the redirect is the response."""
