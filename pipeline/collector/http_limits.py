"""Limits for clients of a collector, and a parsed request."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dpstream.pipeline.addresses import network_of
from dpstream.topics.envelopes import BODY_MAX

REMEMBERED: Final = 100_000
"""Maximum number of addresses whose rates are remembered; the least recently used is evicted."""


class Rates:
    """Limit requests and reports per second, by IPv4 address or IPv6 network.

    A request costs one unit per report, and at least one. The number of reports is known only after
    the request has arrived. All reports beyond the first then put the address in debt, so it waits
    longer. `burst` is the number of requests that an inactive address can send without waiting.

    >>> rates = Rates(1.0, clock=lambda: 0.0, burst=2)
    >>> [rates.wait("192.0.2.1") for _ in range(3)], rates.wait("192.0.2.2")
    ([0, 0, 1], 0)
    >>> rates.charge("192.0.2.2", 99)
    >>> rates.wait("192.0.2.2")
    99
    """

    def __init__(self, rate: float, clock: Callable[[], float], burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, 2 * rate if burst is None else burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str) -> int:
        """Return the seconds until a request is allowed; if that is 0, count the request."""
        level = self._level(address)
        if level >= 1:
            self._keep(address, level - 1)
            return 0
        self._keep(address, level)
        return math.ceil((1 - level) / self._rate)

    def charge(self, address: str, reports: int) -> None:
        self._keep(address, self._level(address) - reports)

    def _level(self, address: str) -> float:
        level, since = self._buckets.get(network_of(address), (self._burst, self._clock()))
        return min(self._burst, level + (self._clock() - since) * self._rate)

    def _keep(self, address: str, level: float) -> None:
        whose = network_of(address)
        self._buckets[whose] = level, self._clock()
        self._buckets.move_to_end(whose)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Maximum resources that clients can use.

    Attributes:
        connections: Open connections, including unfinished TLS handshakes.
        by_address: Connections from one address, or one IPv6 network; None for no limit.
        transit_bytes: Bytes of incomplete bodies, and of requests whose client has to receive
            earlier answers.
        unsent_bytes: Maximum bytes of answers that a client has not received; further answers wait.
        head_seconds: Seconds from the first to the last byte of a head, and for a TLS handshake.
        reading_seconds: Seconds within which a client must receive an answer.
        answer_seconds: Seconds until an answer is ready; must exceed the timeout for Kafka writes.
        pipelined: Requests of one connection that are parsed together or wait for answers.
    """

    connections: int = 10_000
    by_address: int | None = None
    head_bytes: int = 16 << 10
    path_bytes: int = 2_000
    body_bytes: int = BODY_MAX
    transit_bytes: int = 64 << 20
    unsent_bytes: int = 16 << 10
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 75.0
    reading_seconds: float = 30.0
    answer_seconds: float = 60.0
    pipelined: int = 64


@dataclass(slots=True)
class HttpRequest:
    method: str = ""
    path: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    peer: str = ""
    body: bytes = b""
