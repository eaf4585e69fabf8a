"""How often one address may ask: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dpstream.pipeline.addresses import network_of

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
