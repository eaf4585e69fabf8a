"""Client addresses: normalization, and membership in networks such as those of trusted proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NETWORK_BITS: Final = 64
_LONGEST: Final = 64


def parsed(text: str) -> Address | None:
    """Parse an address, with IPv4-mapped IPv6 as IPv4; return None if it is malformed."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(4096)
def network_of(text: str) -> str:
    """Return the key under which a client is counted: its IPv4 address, or its IPv6 /64 network.

    >>> network_of("::ffff:192.0.2.1"), network_of("2001:db8::1"), network_of("?")
    ('192.0.2.1', '2001:db8::/64', '?')
    """
    address = parsed(text)
    if address is None:
        return text[:_LONGEST]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> _NETWORK_BITS << _NETWORK_BITS, 64)))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks and single addresses; raise `ValueError` with the first malformed text."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ValueError(text) from None
    return tuple(found)


@lru_cache(4096)
def is_within(text: str, among: tuple[Network, ...]) -> bool:
    address = parsed(text)
    return address is not None and any(address in network for network in among)
