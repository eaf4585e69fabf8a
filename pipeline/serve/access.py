"""Access to the live page by password, or by a user name that a proxy sets. Without I/O."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dpstream.pipeline.addresses import Network, is_within, network_of, networks
from dpstream.pipeline.serve.passwords import HashedPassword

SESSION_SECONDS = 12 * 3_600

ATTEMPTS = 5
WINDOW_SECONDS = 60.0
"""Seconds in which an address may send `ATTEMPTS` wrong passwords; more are rejected unchecked."""

ATTEMPTS_OF_ALL = 60
_MOST_ADDRESSES = 10_000
_LOOPBACK = networks(("127.0.0.0/8", "::1/128"))

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Access rules. Without a password and a header, anyone who can reach the page can read it.

    A proxy in `proxies` names the user in `header`. If `header` is None, no name is accepted.
    """

    password: HashedPassword | None = None
    header: str | None = None
    proxies: tuple[Network, ...] = _LOOPBACK

    @property
    def open(self) -> bool:
        return self.password is None and self.header is None

    def named_by_proxy(self, headers: Mapping[str, str], peer: str | None) -> bool:
        """Return whether a trusted proxy names the user; a `peer` of None means an unknown address.

        >>> behind = AccessSettings(header="X-Forwarded-User")
        >>> told = {"X-Forwarded-User": "ada"}
        >>> behind.named_by_proxy(told, "127.0.0.1"), behind.named_by_proxy(told, "192.0.2.7")
        (True, False)
        """
        if self.header is None or peer is None or not headers.get(self.header, "").strip():
            return False
        return is_within(peer, self.proxies)


class Sessions:
    """Session tokens issued after login, valid until this process ends. `clock` returns seconds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self) -> str:
        body = f"{int(self._clock()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{body}.{self._sign(body)}"

    def holds(self, token: str) -> bool:
        """Return whether a token is signed by this process, unexpired, and not logged out."""
        body, _, signature = token.rpartition(".")
        if not token.isascii():
            # Not signed here: the header bytes were not UTF-8, and cannot be encoded.
            return False
        signed = hmac.compare_digest(signature, self._sign(body))
        return signed and body not in self._ended and self._clock() < _end_of(body)

    def end(self, token: str) -> None:
        if self.holds(token):
            body = token.rpartition(".")[0]
            # Expired tokens are invalid anyway.
            self._ended = {each: at for each, at in self._ended.items() if self._clock() < at}
            self._ended[body] = _end_of(body)

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def _end_of(body: str) -> int:
    return int(body.partition(".")[0])


@dataclass(eq=False)
class LoginAttempts:
    """Wrong passwords within the latest minute, per address (for IPv6, per /64 network)."""

    clock: Clock = time.monotonic
    _failed: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)
    _all: list[float] = field(default_factory=list)

    def wait(self, peer: str) -> float:
        now = self.clock()
        self._all = _recent(self._all, now)
        own = _recent(self._failed.get(network_of(peer), []), now)
        waits = 0.0
        for failed, most in ((own, ATTEMPTS), (self._all, ATTEMPTS_OF_ALL)):
            if len(failed) >= most:
                waits = max(waits, failed[-most] + WINDOW_SECONDS - now)
        return waits

    def begin(self, peer: str) -> None:
        """Record an attempt, which counts as wrong (even while it is checked) until `succeed`."""
        now = self.clock()
        self._all.append(now)
        client = network_of(peer)
        self._failed[client] = [*_recent(self._failed.pop(client, []), now), now]
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def succeed(self, peer: str) -> None:
        for failed in (self._failed.get(network_of(peer), []), self._all):
            if failed:
                failed.pop()


def _recent(times: list[float], now: float) -> list[float]:
    return [at for at in times if now - at < WINDOW_SECONDS]
