"""Request checks, and the security headers in every response.

A page from another site must not read the numbers through a user's browser, so responses allow
no other origin. Requests for an unknown host name are rejected, so that no name can be rebound to
this address (DNS rebinding). Passwords are checked in `login`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def headers_for(frame_ancestors: Iterable[str] = (), *, form: bool = False) -> Mapping[str, str]:
    """Return the headers for every response.

    Pages from the origins in `frame_ancestors` may embed the page in a frame. `form` is True for a
    page with a form.
    """
    policy = HEADERS["Content-Security-Policy"]
    if origins := " ".join(frame_ancestors):
        policy = policy.replace("frame-ancestors 'none'", f"frame-ancestors {origins}")
    if not form:
        return {**HEADERS, "Content-Security-Policy": policy}
    policy = policy.replace("form-action 'none'", "form-action 'self'")
    # Without a referrer, browsers would not send the origin of a form either.
    return {**HEADERS, "Content-Security-Policy": policy, "Referrer-Policy": "same-origin"}


def check_origin(text: str) -> str:
    """Return `text` if it is an origin, such as "https://x.example.org", or raise `ValueError`."""
    parts = urlsplit(text)
    whole = f"{parts.scheme}://{parts.netloc}"
    known = set("abcdefghijklmnopqrstuvwxyz0123456789.-:[]")
    if text != whole or parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(text)
    if not set(parts.netloc) <= known:
        raise ValueError(text)
    return text


LONGEST_TARGET = 2_000
"""Maximum number of characters in path and query together."""


@dataclass(frozen=True, slots=True)
class RequestRejection:
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Check requests before they are answered.

    `hosts` are allowed besides IP addresses and localhost. They are in lowercase, and contain the
    port unless it is the default one.
    """

    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, hosts: Iterable[str]) -> Gatekeeper:
        return cls(frozenset(host.strip().rstrip(".").lower() for host in hosts))

    def reject(
        self, method: str, target: str, headers: Mapping[str, str], *, has_body: bool
    ) -> RequestRejection | None:
        """Return why to reject a request, or None. `target` is the request's path and query.

        >>> gate = Gatekeeper.of(["stats.example.org"])
        >>> gate.reject("GET", "/", {"Host": "127.0.0.1:8765"}, has_body=False)
        >>> gate.reject("GET", "/", {"Host": "evil.example"}, has_body=False).status
        421
        >>> foreign = {"Host": "localhost", "Origin": "https://evil.example"}
        >>> gate.reject("GET", "/ws", foreign, has_body=False).status
        403
        """
        if len(target) > LONGEST_TARGET:
            return RequestRejection(
                414,
                f"the address has {len(target):,} characters; maximum {LONGEST_TARGET:,}",
            )
        if method not in ("GET", "HEAD"):
            return RequestRejection(405, "this server is read-only; expected GET or HEAD")
        if has_body:
            return RequestRejection(413, "requests must not have a body")
        host = headers.get("Host", "")
        if not self._is_ours(host):
            return RequestRejection(
                421,
                f"unknown host {host[:100]!a}. To allow it: 'dpstream serve --allow-host NAME'",
            )
        origin = headers.get("Origin")
        if origin is not None and not self._same_origin(origin, host):
            return RequestRejection(403, "requests from pages of other sites are rejected")
        return None

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        return name == "localhost" or _is_address(name) or name in map(_name, self.hosts)

    def _same_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if not origin.isprintable() or parts.scheme not in ("http", "https"):
            return False
        # A proxy may send its own address as host, for a page under a configured name.
        return parts.netloc.lower() in {host.lower(), *self.hosts}


def _name(host: str) -> str | None:
    """Return the name or address in a ``Host`` header, without the port; None if malformed."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return None
    plain = parts.hostname
    if plain is None or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    del port
    return plain.rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
