"""Limit the resources of idle connections.

`ConnectionLimiter` wraps the protocol of every connection. It forwards a request only if the head
of the request is complete within a time limit. At the maximum number of connections, the one that
has been idle longest is closed. An attacker that opens a thousand connections and sends nothing, or
one byte at a time, therefore takes no resources from other viewers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dpstream.pipeline.serve.security import HEADERS, LONGEST_TARGET


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits for viewers.

    Attributes:
        connections: Maximum number of open connections.
        viewers: Maximum number of WebSockets among these connections.
        head_seconds: Maximum time until the head of a request is complete.
        idle_seconds: Maximum time between two requests on a connection.
        heartbeat_seconds: Interval between two heartbeats on a WebSocket.
        news_seconds: Minimum time between two messages about pipelines and the list of jobs.
        blocked_seconds: Time after which a viewer that reads nothing is dropped.
    """

    connections: int = 3_000
    viewers: int = 2_000
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    heartbeat_seconds: float = 10.0
    news_seconds: float = 1.0
    blocked_seconds: float = 2.0
    downloads: int = 4


_LONGEST_HEAD = 16_384
_END = b"\r\n\r\n"
_WELL_FORMED = re.compile(
    rb"[A-Z]{1,16} [!-~]+ HTTP/1\.[01]\r\n(?:[!#-'*+\-.^-`|~\w]+:[\t -~\x80-\xff]*\r\n)*\r\n"
)


class Connections:
    def __init__(self, make: Callable[[], asyncio.Protocol], limits: Limits) -> None:
        self.make = make
        self.limits = limits
        # Ordered by the time at which they became idle.
        self.idle: dict[ConnectionLimiter, None] = {}
        self.open: set[ConnectionLimiter] = set()

    def __call__(self) -> ConnectionLimiter:
        return ConnectionLimiter(self)

    def make_room(self) -> bool:
        """At the limit, close the longest idle connection; return False if none is idle."""
        if len(self.open) < self.limits.connections:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        oldest.drop()
        return True


class ConnectionLimiter(asyncio.Protocol):
    """Protocol for one connection: forwards complete requests, and everything after an upgrade."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._connections.make_room():
            self._reject(503, "too many connections; try again in a moment")
            return
        self._connections.open.add(self)
        self._inner = self._connections.make()
        self._inner.connection_made(transport)
        self._wait(self._connections.limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._busy:
            self._inner.data_received(data)
            return
        if not self._head:
            self._wait(self._connections.limits.head_seconds)
        self._head += data
        if _END in self._head:
            head, self._head = self._head, b""
            lines = head.lower()
            if not _WELL_FORMED.match(head) or b"\r\nhost:" not in lines:
                self._reject(400, "malformed request; expected HTTP/1.1")
            elif b"\r\nexpect:" in lines:
                # aiohttp answers these by itself, so `finished` would never be called.
                self._reject(417, "requests must not have a body; remove the Expect header")
            else:
                self._work()
                self._inner.data_received(head)
        elif len(self._head) > LONGEST_TARGET + 100 and b"\r\n" not in self._head:
            self._reject(414, f"the address is too long; maximum {LONGEST_TARGET:,} characters")
        elif len(self._head) > _LONGEST_HEAD:
            self._reject(431, f"the request head is too long; maximum {_LONGEST_HEAD:,} bytes")

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._connections.idle.pop(self, None)
        self._connections.open.discard(self)
        if self._inner is not None:
            self._inner.connection_lost(error)
            self._inner = None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def started(self) -> None:
        self._work()

    def finished(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._busy = False
            self._wait(self._connections.limits.idle_seconds)

    def drop(self) -> None:
        self._connections.idle.pop(self, None)
        self._connections.open.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def _work(self) -> None:
        self._busy = True
        self._stop_timer()
        self._connections.idle.pop(self, None)

    def _wait(self, seconds: float) -> None:
        self._stop_timer()
        self._connections.idle.pop(self, None)
        self._connections.idle[self] = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self.drop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reject(self, status: int, message: str) -> None:
        assert self._transport is not None
        body = f"{message}\n".encode()
        headers = {
            **HEADERS,
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        lines = [
            f"HTTP/1.1 {status} {_REASONS[status]}",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        self._transport.write("\r\n".join(lines).encode() + _END + body)
        self._transport.close()


_REASONS = {
    400: "Bad Request",
    414: "URI Too Long",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
