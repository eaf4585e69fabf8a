"""HTTP/1.1 as a collector speaks it: httptools reads, and nothing is held that has no bound.

Whoever is slow, or says nothing, holds a connection and a few hundred bytes for a stated time; the
connections that have been idle for longest make room for new ones. Answers leave in the order of
their requests, however they come about.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final, cast

import httptools

from pipeline.collector.answers import STATUS_LINES, Answer, Headers, Problem, written
from topics.envelopes import BODY_MAX

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# A body in chunks of a byte each is six times as long.
_SPREAD: Final = 6
_LINGERING_SECONDS: Final = 2.0
_WANTED: Final = frozenset(
    {
        b"authorization",
        b"content-type",
        b"expect",
        b"origin",
        b"x-forwarded-for",
        b"access-control-request-method",
    }
)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What clients may use.

    Attributes:
        connections: open at once.
        head_bytes: of the head of a request.
        path_bytes: of its path.
        body_bytes: of its body.
        head_seconds: for a head to be complete, from its first byte on.
        body_seconds: for a body, from the end of its head on.
        idle_seconds: between two requests.
        reading_seconds: for a client to take an answer.
        pipelined: requests of one connection that wait for their answers.
    """

    connections: int = 10_000
    head_bytes: int = 16 << 10
    path_bytes: int = 2_000
    body_bytes: int = BODY_MAX
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 75.0
    reading_seconds: float = 30.0
    pipelined: int = 64


@dataclass(slots=True)
class Request:
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


class Slot:
    """The place of an answer among those of its connection."""

    __slots__ = ("_close", "_connection", "_head_only", "_more", "bytes")

    def __init__(self, connection: Connection, *, head_only: bool, close: bool) -> None:
        self._connection = connection
        self._head_only = head_only
        self._close = close
        self._more: Headers = ()
        self.bytes = b""

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after this answer."""
        return self._close

    def close_after(self) -> None:
        """Close the connection after this answer."""
        self._close = True

    def allow(self, more: Headers) -> None:
        """Add headers to whatever will be answered."""
        self._more = more

    def __call__(self, answer: Answer) -> None:
        """Answer."""
        connections = self._connection.connections
        self._close |= connections.closing
        self.bytes = b"%b%b%b" % (
            STATUS_LINES[answer.status],
            connections.date,
            written(answer, self._more, close=self._close, body=not self._head_only),
        )
        self._connection.drain()


Handler = Callable[[Request, Slot], None]
"""Answers a request, now or later, by calling the slot once."""
Look = Callable[[Request], Answer | None]
"""Whether the head of a request is refused, before its body has come."""


class Connections:
    """The open connections of a server.

    Args:
        handle: answers requests.
        look: at heads.
        limits: of what clients may use.
        failed: is told of errors that nobody expected, which are answered 500.
    """

    def __init__(
        self,
        handle: Handler,
        look: Look,
        limits: HttpLimits,
        failed: Callable[[Exception], None],
    ) -> None:
        self.handle = handle
        self.look = look
        self.limits = limits
        self.failed = failed
        self.closing = False
        self.open: set[Connection] = set()
        # In the order in which they became idle.
        self.idle: dict[Connection, None] = {}
        self.now = 0.0
        self.date = b""
        self.tick(0.0)

    def __call__(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    def tick(self, now: float) -> None:
        """Drop whoever has been slow for too long; to be called about once a second.

        Args:
            now: of the loop's clock.
        """
        self.now = now
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in [each for each in self.open if each.deadline <= now]:
            connection.too_slow()

    def make_room(self) -> bool:
        """Close the one that is idle for longest, if there are too many; False if none is."""
        if len(self.open) < self.limits.connections:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is None:
            return False
        oldest.abort()
        return True

    def close_idle(self) -> None:
        """From now on, every connection is closed after its last answer."""
        self.closing = True
        for connection in list(self.idle):
            connection.abort()

    def abort(self) -> None:
        """Close all."""
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.deadline = float("inf")
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._slots: deque[Slot] = deque()
        self._request = Request()
        self._slot: Slot | None = None
        self._head_bytes = 0
        self._fed_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._in_head = False
        self._in_body = False
        self._ended = False
        self._paused = False
        self._stuck = False
        self._lingers = False
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room, and wait for a request."""
        self._transport = cast(asyncio.Transport, transport)
        room = self.connections.make_room()
        self.connections.open.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        if not room:
            self._refuse(Problem.BUSY.answer(retry_after=1))
            return
        self._wait(self._limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it; what was taken in of it goes on."""
        self._ended = True
        self.connections.idle.pop(self, None)
        self.connections.open.discard(self)

    def eof_received(self) -> bool:
        """Nothing more is asked; returns whether there is still something to answer."""
        transport = self._transport
        if self._ended or not self._slots or transport is None or not transport.can_write_eof():
            return False
        self._ended = True
        self._slots[-1].close_after()
        return True

    def data_received(self, data: bytes) -> None:
        """Read requests."""
        if self._ended:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.connections.failed(error)
            self._refuse(Problem.INTERNAL.answer())
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._refuse(Problem.MALFORMED.answer())
        # Of what has not come to its end, the parser holds as much as it was fed.
        self._fed_bytes += len(data)
        if self._in_head and self._fed_bytes > self._limits.head_bytes + len(data):
            self._refuse(Problem.HEADERS.answer())
        elif self._in_body and self._fed_bytes > _SPREAD * self._limits.body_bytes + len(data):
            self._refuse(Problem.TOO_LARGE.answer())
        elif not self._in_head and not self._in_body and not self._slots and not self._ended:
            self._wait(self._limits.idle_seconds)
        if len(self._slots) > self._limits.pipelined:
            self._pause()

    def on_message_begin(self) -> None:
        """Of httptools: a request begins."""
        if self._ended:
            return
        self._request = Request(peer=self._peer)
        self._head_bytes = self._fed_bytes = 0
        self._in_head = True
        self.connections.idle.pop(self, None)
        self._allow(self._limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        """Of httptools: a part of the address."""
        self._head_bytes += len(url)
        self._request.path += url
        if self._head_bytes > self._limits.path_bytes:
            self._refuse(Problem.URI.answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools: a header."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(Problem.HEADERS.answer())
            return
        name = name.lower()
        if name in _WANTED:
            headers = self._request.headers
            # What is said twice is nothing that is understood.
            headers[name] = value if name not in headers else headers[name] + b", " + value
        elif name == b"content-length" and int(value) > self._limits.body_bytes:
            self._refuse(Problem.TOO_LARGE.answer())

    def on_headers_complete(self) -> None:
        """Of httptools: the body follows, if there is one."""
        if self._ended:
            return
        self._in_head, self._in_body = False, True
        self._fed_bytes = 0
        request = self._request
        request.path = request.path.partition(b"?")[0]
        request.method = self._parser.get_method().decode("ascii")
        self._allow(self._limits.body_seconds)
        refusal = self.connections.look(request)
        if refusal is not None:
            self._refuse(refusal)
            return
        expected = request.headers.get(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                self._refuse(Problem.EXPECTATION.answer())
            elif not self._slots and self._transport is not None:
                self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Of httptools: a part of the body."""
        if self._ended:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse(Problem.TOO_LARGE.answer())
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Of httptools: the request is whole."""
        if self._ended:
            return
        request, self._in_body = self._request, False
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._body_bytes = [], 0
        slot = Slot(
            self,
            head_only=request.method == "HEAD",
            close=not self._parser.should_keep_alive(),
        )
        self._slots.append(slot)
        self._allow(float("inf"))
        try:
            self.connections.handle(request, slot)
        except Exception as error:
            self.connections.failed(error)
            slot(Problem.INTERNAL.answer())

    def drain(self) -> None:
        """Send what has been answered, up to the first request that has not."""
        transport, slots = self._transport, self._slots
        if transport is None or transport.is_closing():
            slots.clear()
            return
        ready = []
        closes = False
        while slots and slots[0].bytes and not closes:
            slot = slots.popleft()
            ready.append(slot.bytes)
            closes = slot.closes
        if not ready:
            return
        transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if closes:
            self._end()
        elif not slots:
            if self._paused and not self._stuck:
                self._paused = False
                transport.resume_reading()
            if not self._in_head and not self._in_body:
                self._wait(self._limits.idle_seconds)

    def pause_writing(self) -> None:
        """The other side does not read: neither do we, and not for long."""
        self._stuck = True
        self._pause()
        self.deadline = self._soon(self._limits.reading_seconds)

    def resume_writing(self) -> None:
        """It reads again."""
        self._stuck = False
        self.deadline = self._soon(self._limits.idle_seconds)
        if self._paused and not self._slots and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def too_slow(self) -> None:
        """A deadline has passed."""
        if (self._in_head or self._in_body) and not self._stuck and not self._ended:
            self._refuse(Problem.TIMEOUT.answer())
        else:
            self.abort()

    def abort(self) -> None:
        """Close it at once."""
        self._ended = True
        self.connections.idle.pop(self, None)
        self.connections.open.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, answer: Answer) -> None:
        """Answer what cannot be read to its end, after what was asked before, and close."""
        if self._ended:
            return
        # Nothing is read any more; the slots before are still answered.
        self._ended = True
        # Who is still sending would not read an answer of a connection that is closed on it.
        self._lingers = self._in_head or self._in_body
        self._body, self._in_head, self._in_body = [], False, False
        slot = Slot(self, head_only=False, close=True)
        self._slots.append(slot)
        slot(answer)

    def _end(self) -> None:
        self._ended = True
        self._slots.clear()
        self.connections.idle.pop(self, None)
        transport = self._transport
        if transport is None:
            return
        if self._lingers and transport.can_write_eof():
            # What still comes is read, and passed over.
            self.deadline = self._soon(_LINGERING_SECONDS)
            transport.write_eof()
        else:
            self.deadline = self._soon(self._limits.reading_seconds)
            transport.close()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _wait(self, seconds: float) -> None:
        """For the next request."""
        self._fed_bytes = 0
        self.connections.idle.pop(self, None)
        self.connections.idle[self] = None
        self._allow(seconds)

    def _allow(self, seconds: float) -> None:
        """For what comes next; who does not take its answers has a deadline already."""
        if not self._stuck:
            self.deadline = self._soon(seconds)

    def _soon(self, seconds: float) -> float:
        return self.connections.now + seconds
