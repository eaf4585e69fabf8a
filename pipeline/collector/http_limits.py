"""What clients of a collector may use, and a request as it is handed on."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dpstream.pipeline.addresses import network_of
from dpstream.topics.envelopes import BODY_MAX

REMEMBERED: Final = 100_000
"""Addresses whose buckets are kept; those that asked longest ago are forgotten first."""


class Rates:
    """Limits requests and reports by address; of IPv6 by network.

    A request costs 1, and one with many reports as much as these: since nobody knows how many
    there are before it has come, its address is in debt afterwards, and waits longer.

    Args:
        rate: requests or reports a second, for each.
        clock: seconds.
        burst: requests at once, of one that has not asked lately.

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
        """Seconds to wait before somebody may ask; 0: now, which is counted."""
        level = self._level(address)
        if level >= 1:
            self._keep(address, level - 1)
            return 0
        self._keep(address, level)
        return math.ceil((1 - level) / self._rate)

    def charge(self, address: str, reports: int) -> None:
        """Count reports that were in a request which was let through."""
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
    """What clients may use.

    Attributes:
        connections: accepted at once, those of unfinished TLS handshakes included.
        by_address: connections of one address, or of one network of IPv6; None: as many as come.
        head_bytes: of the head of a request.
        path_bytes: of its path.
        body_bytes: of its body.
        transit_bytes: of all bodies that are not complete, and of requests that have to wait
            because answers before them are not taken.
        unsent_bytes: of answers of one connection that the other side has not taken: with more,
            nothing of it is answered.
        head_seconds: for a head to be complete, from its first byte on, and for a TLS handshake.
        body_seconds: for a body, from the end of its head on.
        idle_seconds: between two requests.
        reading_seconds: for a client to take an answer.
        answer_seconds: for an answer to come about; more than a write to Kafka takes.
        pipelined: requests of one connection that are answered together, or wait.
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
    """A request, complete.

    Attributes:
        method: such as POST.
        path: as it was sent, without the query.
        headers: those that are wanted, with names in lower case.
        peer: the address at the other end of the connection.
        body: of the request.
    """

    method: str = ""
    path: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    peer: str = ""
    body: bytes = b""
