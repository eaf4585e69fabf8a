"""Who may see the page: whoever knows its password, or whom a proxy names in a header. No I/O."""

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
"""For so long somebody who has given the password need not do so again."""

ATTEMPTS = 5
WINDOW_SECONDS = 60.0
"""So many wrong passwords from an address in such a time, and no more are looked at."""

ATTEMPTS_OF_ALL = 60
_MOST_ADDRESSES = 10_000
_LOOPBACK = networks(("127.0.0.0/8", "::1/128"))

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may see the page; with neither a password nor a header, whoever reaches it.

    Attributes:
        password: None: there is none.
        header: that a proxy sets to the name of who asks; None: no such header counts.
        proxies: networks from which that header counts.
    """

    password: HashedPassword | None = None
    header: str | None = None
    proxies: tuple[Network, ...] = _LOOPBACK

    @property
    def open(self) -> bool:
        """Whether everybody may."""
        return self.password is None and self.header is None

    def named_by_proxy(self, headers: Mapping[str, str], peer: str | None) -> bool:
        """Whether a trusted proxy says who asks.

        >>> behind = AccessSettings(header="X-Forwarded-User")
        >>> told = {"X-Forwarded-User": "ada"}
        >>> behind.named_by_proxy(told, "127.0.0.1"), behind.named_by_proxy(told, "192.0.2.7")
        (True, False)

        Args:
            headers: of the request; names in any case.
            peer: the address that it came from, None if that is not known.
        """
        if self.header is None or peer is None or not headers.get(self.header, "").strip():
            return False
        return is_within(peer, self.proxies)


class Sessions:
    """Tokens of those who have given the password, which end with the process.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self) -> str:
        """A new token."""
        body = f"{int(self._clock()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{body}.{self._sign(body)}"

    def holds(self, token: str) -> bool:
        """Whether it is one, and not too old."""
        body, _, signature = token.rpartition(".")
        if not token.isascii():
            # Nor can it be signed: a header's bytes that are no UTF-8 are no text either.
            return False
        signed = hmac.compare_digest(signature, self._sign(body))
        return signed and body not in self._ended and self._clock() < _end_of(body)

    def end(self, token: str) -> None:
        """Let a token be none any more, wherever else it may be kept."""
        if self.holds(token):
            body = token.rpartition(".")[0]
            # Those that are too old by now are none anyhow.
            self._ended = {each: at for each, at in self._ended.items() if self._clock() < at}
            self._ended[body] = _end_of(body)

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def _end_of(body: str) -> int:
    return int(body.partition(".")[0])


@dataclass(eq=False)
class LoginAttempts:
    """Wrong passwords of the last minute, of each address; of IPv6, of each network of 64 bits.

    Attributes:
        clock: seconds.
    """

    clock: Clock = time.monotonic
    _failed: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)
    _all: list[float] = field(default_factory=list)

    def wait(self, peer: str) -> float:
        """For how many seconds an address has to wait; 0 if it may try."""
        now = self.clock()
        self._all = _recent(self._all, now)
        own = _recent(self._failed.get(network_of(peer), []), now)
        waits = 0.0
        for failed, most in ((own, ATTEMPTS), (self._all, ATTEMPTS_OF_ALL)):
            if len(failed) >= most:
                waits = max(waits, failed[-most] + WINDOW_SECONDS - now)
        return waits

    def begin(self, peer: str) -> None:
        """An address tries; until `succeed` it counts as wrong, also while it is looked at."""
        now = self.clock()
        self._all.append(now)
        client = network_of(peer)
        self._failed[client] = [*_recent(self._failed.pop(client, []), now), now]
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def succeed(self, peer: str) -> None:
        """The latest try of an address was right."""
        for failed in (self._failed.get(network_of(peer), []), self._all):
            if failed:
                failed.pop()


def _recent(times: list[float], now: float) -> list[float]:
    return [at for at in times if now - at < WINDOW_SECONDS]
