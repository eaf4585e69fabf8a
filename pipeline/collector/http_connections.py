"""Limit the number of a collector's open connections: old ones are closed to admit new ones.

If there are too many connections, one is closed: an idle one (without a request) if there is any,
otherwise one with an unfinished TLS handshake or request, otherwise one whose client has not
received its answer; among several, the one inactive longest. A connection whose report is being
written to Kafka is never closed to admit another.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate

from dpstream.pipeline.addresses import network_of
from dpstream.pipeline.collector.http_connection import HttpConnection, Slot
from dpstream.pipeline.collector.http_limits import HttpLimits, HttpRequest
from dpstream.pipeline.collector.responses import Headers, HttpResponse

Handler = Callable[[HttpRequest, Slot], None]
"""Function that answers a request, immediately or later, by calling the slot once."""
Look = Callable[[HttpRequest], HttpResponse | None]
"""Check of a request's head before its body arrives; returns the rejection, or None."""


class HttpConnections:
    """The open connections to a server.

    `look` checks the heads of requests, and `handle` answers them. `allowed` returns additional
    headers for every answer to a request. `counted_apart` returns whether an address stands for
    many clients, like that of a proxy. After an error, `failed` is called, and the answer has
    status 500.
    """

    def __init__(
        self,
        handle: Handler,
        look: Look,
        allowed: Callable[[HttpRequest], Headers],
        limits: HttpLimits,
        failed: Callable[[Exception], None],
        counted_apart: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self.handle = handle
        self.look = look
        self.allowed = allowed
        self.limits = limits
        self.failed = failed
        self.closing = False
        self.open: set[HttpConnection] = set()
        # These three are in insertion order.
        self.idle: dict[HttpConnection, None] = {}
        self.unfinished: dict[HttpConnection, None] = {}
        self.handshakes: dict[socket.socket, str] = {}
        self.transit_bytes = 0
        self.now = 0.0
        self.date = b""
        self._counted_apart = counted_apart
        self._by_network: Counter[str] = Counter()
        self.tick(0.0)

    def tick(self, now: float) -> None:
        """Close connections past their deadline; called about once a second with loop time."""
        self.now = now
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in [each for each in self.open if each.deadline <= now]:
            connection.too_slow()

    def accept(self, made: socket.socket, address: str) -> bool:
        """Count a new socket, closing an older one if needed; return False to reject the socket."""
        most = self.limits.by_address
        taken = self._by_network[network_of(address)]
        if most is not None and taken >= most and not self._counted_apart(address):
            return False
        if not self._make_room():
            return False
        self.handshakes[made] = address
        self._count(address, 1)
        return True

    def forget(self, made: socket.socket) -> None:
        """Stop counting an accepted socket as a handshake; can be called repeatedly."""
        address = self.handshakes.pop(made, None)
        if address is not None:
            self._count(address, -1)

    def enter(self, connection: HttpConnection) -> None:
        self.forget(connection.made)
        self.open.add(connection)
        self._count(connection.peer, 1)

    def leave(self, connection: HttpConnection) -> None:
        self.idle.pop(connection, None)
        self.unfinished.pop(connection, None)
        if connection in self.open:
            self.open.remove(connection)
            self._count(connection.peer, -1)

    def hold(self, size: int) -> bool:
        if self.transit_bytes + size > self.limits.transit_bytes:
            return False
        self.transit_bytes += size
        return True

    def release(self, size: int) -> None:
        self.transit_bytes -= size

    def close_idle(self) -> None:
        """Close idle connections now, and other connections after their last answer."""
        self.closing = True
        for connection in list(self.idle):
            connection.abort()

    def abort(self) -> None:
        for made in list(self.handshakes):
            _hang_up(made)
        for connection in list(self.open):
            connection.abort()

    def _make_room(self) -> bool:
        if len(self.open) + len(self.handshakes) < self.limits.connections:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is None and self.handshakes:
            made = next(iter(self.handshakes))
            self.forget(made)
            _hang_up(made)
            return True
        oldest = oldest or next(iter(self.unfinished), None)
        if oldest is None:
            return False
        oldest.abort()
        return True

    def _count(self, address: str, change: int) -> None:
        whose = network_of(address)
        self._by_network[whose] += change
        if not self._by_network[whose]:
            del self._by_network[whose]


def _hang_up(made: socket.socket) -> None:
    with suppress(OSError):
        made.shutdown(socket.SHUT_RDWR)
