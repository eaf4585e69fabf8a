"""How often one address may ask: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

REMEMBERED: Final = 100_000
"""Addresses whose buckets are kept; those that asked longest ago are forgotten first."""
_NETWORK_BITS: Final = 64


class Rates:
    """Limits requests by address; of IPv6 by network, of which everybody has all addresses.

    Args:
        rate: requests a second, for each.
        clock: seconds.
        burst: requests at once, of one that has not asked lately.

    >>> rates = Rates(1.0, clock=lambda: 0.0, burst=2)
    >>> [rates.allow("192.0.2.1") for _ in range(3)], rates.allow("192.0.2.2")
    ([True, True, False], True)
    """

    def __init__(self, rate: float, clock: Callable[[], float], burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, 2 * rate if burst is None else burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allow(self, address: str) -> bool:
        """Whether somebody may ask now; counts it if so."""
        whose, now = _network(address), self._clock()
        level, since = self._buckets.pop(whose, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1
        self._buckets[whose] = (level - 1 if allowed else level, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed


def _network(address: str) -> str:
    if ":" not in address:
        return address
    try:
        number = int(ipaddress.IPv6Address(address.partition("%")[0]))
    except ValueError:
        return address[:64]
    return f"{number >> _NETWORK_BITS:x}"
