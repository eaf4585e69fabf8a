"""HTTP/1.1 as a collector speaks it: httptools reads, and nothing is held that has no bound.

What comes is read in small slices, and no further while answers wait to be taken, so that what a
connection holds does not grow with what it asks. Answers leave in the order of their requests,
however they come about.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from dpstream.pipeline.collector.http_limits import HttpRequest
from dpstream.pipeline.collector.responses import (
    STATUS_LINES,
    Headers,
    HttpResponse,
    RequestProblem,
    written,
)

if TYPE_CHECKING:
    from dpstream.pipeline.collector.http_connections import HttpConnections

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# A body in chunks of a byte each is six times as long.
_SPREAD: Final = 6
# Of heads: so many bytes hold few requests.
_SLICE_BYTES: Final = 1 << 10
_LINGERING_SECONDS: Final = 2.0
_BUSY_SECONDS: Final = 5
# Of a length that is compared at all.
_DIGITS: Final = 20
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


class Slot:
    """The place of an answer among those of its connection.

    Attributes:
        answer: None: there is none yet.
        headers: of whatever will be answered.
        head_only: whether the body is left out.
        closes: whether the connection is closed after this answer.
    """

    __slots__ = ("_connection", "answer", "closes", "head_only", "headers")

    def __init__(
        self, connection: HttpConnection, headers: Headers, *, head_only: bool, closes: bool
    ) -> None:
        self._connection = connection
        self.answer: HttpResponse | None = None
        self.headers = headers
        self.head_only = head_only
        self.closes = closes

    def __call__(self, answer: HttpResponse) -> None:
        """Answer."""
        self.answer = answer
        self.closes |= self._connection.connections.closing
        self._connection.drain()


class HttpConnection(asyncio.Protocol):
    """One connection.

    Args:
        connections: all of them.
        made: its socket.
    """

    def __init__(self, connections: HttpConnections, made: socket.socket) -> None:
        self.connections = connections
        self.made = made
        self.peer = ""
        self.deadline = float("inf")
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._slots: deque[Slot] = deque()
        self._request = HttpRequest()
        self._head_bytes = 0
        self._fed_bytes = 0
        self._body: bytes | bytearray = b""
        self._body_left = 0
        # What has come and is not read, because answers wait.
        self._unread = b""
        self._held_bytes = 0
        self._at_once = 0
        self._reads = False
        self._in_head = False
        self._in_body = False
        self._ended = False
        self._paused = False
        self._stuck = False
        self._lingers = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.connections.enter(self)
        self._wait(self._limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it; what was taken in of it goes on."""
        self._ended = True
        self._let_go()
        self.connections.leave(self)

    def eof_received(self) -> bool:
        """Nothing more is asked; returns whether there is still something to answer."""
        transport = self._transport
        if self._ended or not self._slots or transport is None or not transport.can_write_eof():
            return False
        self._ended = True
        self._let_go()
        self._slots[-1].closes = True
        return True

    def data_received(self, data: bytes) -> None:
        """Read requests."""
        if self._ended:
            return
        self._at_once = 0
        # Something is there if the transport had read it before it was paused.
        self._read(self._unread + data if self._unread else data)

    def on_message_begin(self) -> None:
        """Of httptools: a request begins."""
        if self._ended:
            return
        self._request = HttpRequest(peer=self.peer)
        self._head_bytes = self._fed_bytes = self._body_left = 0
        self._in_head = True
        self.connections.idle.pop(self, None)
        if not self._slots:
            self.connections.unfinished[self] = None
        self._allow(self._limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        """Of httptools: a part of the address."""
        self._head_bytes += len(url)
        self._request.path += url
        if self._head_bytes > self._limits.path_bytes:
            self._refuse(RequestProblem.URI.answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools: a header; or a trailer, after the body, which is passed over."""
        if self._in_body:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(RequestProblem.HEADERS.answer())
            return
        name = name.lower()
        if name in _WANTED:
            headers = self._request.headers
            # What is said twice is nothing that is understood.
            headers[name] = value if name not in headers else headers[name] + b", " + value
        elif name == b"content-length":
            if not value.isdigit():
                self._refuse(RequestProblem.MALFORMED.answer())
            elif len(value) > _DIGITS or int(value) > self._limits.body_bytes:
                self._refuse(RequestProblem.TOO_LARGE.answer())
            else:
                self._body_left = int(value)

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
                self._refuse(RequestProblem.EXPECTATION.answer())
            elif not self._slots and self._transport is not None:
                self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Of httptools: a part of the body."""
        if self._ended:
            return
        if len(self._body) + len(body) > self._limits.body_bytes:
            self._refuse(RequestProblem.TOO_LARGE.answer())
            return
        self._body_left = max(0, self._body_left - len(body))
        if not self._body:
            self._body = body
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def on_message_complete(self) -> None:
        """Of httptools: the request is whole."""
        if self._ended:
            return
        request, self._in_body = self._request, False
        request.body, self._body = bytes(self._body), b""
        self._at_once += 1
        self.connections.unfinished.pop(self, None)
        slot = Slot(
            self,
            self.connections.allowed(request),
            head_only=request.method == "HEAD",
            closes=not self._parser.should_keep_alive(),
        )
        self._slots.append(slot)
        self._allow(self._limits.answer_seconds)
        try:
            self.connections.handle(request, slot)
        except Exception as error:
            self.connections.failed(error)
            slot(RequestProblem.INTERNAL.answer())

    def drain(self) -> None:
        """Send what has been answered, up to the first request that has not, while it is taken."""
        transport, slots = self._transport, self._slots
        if transport is None or transport.is_closing():
            slots.clear()
            return
        date = self.connections.date
        try:
            while slots and not self._stuck and (answer := slots[0].answer) is not None:
                slot = slots.popleft()
                more, closes = slot.headers, slot.closes
                rest = written(answer, more, close=closes, body=not slot.head_only)
                transport.write(b"%b%b%b" % (STATUS_LINES[answer.status], date, rest))
                if closes:
                    self._end()
                    return
        except Exception as error:
            self.connections.failed(error)
            self.abort()
            return
        if not self._reads:
            self._go_on()

    def pause_writing(self) -> None:
        """The other side does not read: neither do we, and not for long."""
        self._stuck = True
        self._pause()
        self.connections.idle.pop(self, None)
        self.connections.unfinished[self] = None
        self.deadline = self._soon(self._limits.reading_seconds)

    def resume_writing(self) -> None:
        """It reads again."""
        self._stuck = False
        if self._transport is None or self._transport.is_closing():
            return
        self.connections.unfinished.pop(self, None)
        self.deadline = self._soon(self._limits.answer_seconds)
        self.drain()

    def too_slow(self) -> None:
        """A deadline has passed."""
        if (self._in_head or self._in_body) and not self._stuck and not self._ended:
            self._refuse(RequestProblem.TIMEOUT.answer())
        else:
            self.abort()

    def abort(self) -> None:
        """Close it at once."""
        self._ended = True
        self._let_go()
        self._slots.clear()
        self.connections.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def _read(self, data: bytes) -> None:
        """Read as far as answers are taken, and keep the rest."""
        self._reads = True
        view = memoryview(data)
        while view and not self._ended and not self._is_full():
            # Of a body with a stated length all of it, and nothing that follows.
            size = max(_SLICE_BYTES, self._body_left) if self._in_body else _SLICE_BYTES
            self._feed(view[:size])
            view = view[size:]
        self._reads = False
        if self._ended:
            return
        self._unread = bytes(view)
        self._account()
        self._rest()

    def _feed(self, data: memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.connections.failed(error)
            self._refuse(RequestProblem.INTERNAL.answer())
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._refuse(RequestProblem.MALFORMED.answer())
        # Of what has not come to its end, the parser holds as much as it was fed.
        self._fed_bytes += len(data)
        if self._in_head and self._fed_bytes > self._limits.head_bytes + len(data):
            self._refuse(RequestProblem.HEADERS.answer())
        elif self._in_body and self._fed_bytes > _SPREAD * self._limits.body_bytes + len(data):
            self._refuse(RequestProblem.TOO_LARGE.answer())

    def _is_full(self) -> bool:
        most = self._limits.pipelined
        return self._stuck or len(self._slots) >= most or self._at_once >= most

    def _go_on(self) -> None:
        """Read what was left, as far as it can be."""
        if self._ended or self._stuck or self._transport is None:
            return
        if self._unread:
            self._at_once = 0
            if not self._is_full():
                self._read(self._unread)
        else:
            self._rest()

    def _rest(self) -> None:
        """Wait for whatever has to come next: answers, their being taken, or requests."""
        if self._ended:
            return
        if self._unread or self._is_full():
            self._pause()
            if not self._stuck and len(self._slots) < self._limits.pipelined:
                # Others have their turn first.
                asyncio.get_running_loop().call_soon(self._go_on)
            return
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        if self._slots:
            return
        if self._in_head or self._in_body:
            self.connections.unfinished.setdefault(self)
        else:
            self._wait(self._limits.idle_seconds)

    def _account(self) -> None:
        """Say how much is held of what has come."""
        change = len(self._body) + len(self._unread) - self._held_bytes
        if not change:
            return
        if change < 0:
            self.connections.release(-change)
        elif not self.connections.hold(change):
            self._refuse(RequestProblem.BUSY.answer(retry_after=_BUSY_SECONDS))
            return
        self._held_bytes += change

    def _let_go(self) -> None:
        self._body = self._unread = b""
        self.connections.release(self._held_bytes)
        self._held_bytes = 0

    def _refuse(self, answer: HttpResponse) -> None:
        """Answer what cannot be read to its end, after what was asked before, and close."""
        if self._ended:
            return
        # Nothing is read any more; the slots before are still answered.
        self._ended = True
        # Who is still sending would not read an answer of a connection that is closed on it.
        self._lingers = self._in_head or self._in_body
        self._in_head, self._in_body = False, False
        self._let_go()
        self.deadline = self._soon(self._limits.answer_seconds)
        headers = self.connections.allowed(self._request)
        slot = Slot(self, headers, head_only=False, closes=True)
        self._slots.append(slot)
        slot(answer)

    def _end(self) -> None:
        self._ended = True
        self._let_go()
        self._slots.clear()
        self.connections.idle.pop(self, None)
        self.connections.unfinished[self] = None
        transport = self._transport
        if transport is None:
            return
        if self._lingers and transport.can_write_eof():
            # What still comes is read, and passed over.
            self.deadline = self._soon(_LINGERING_SECONDS)
            transport.write_eof()
            if self._paused:
                self._paused = False
                transport.resume_reading()
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
        self.connections.unfinished.pop(self, None)
        self.connections.idle.pop(self, None)
        self.connections.idle[self] = None
        self._allow(seconds)

    def _allow(self, seconds: float) -> None:
        """For what comes next; who does not take its answers has a deadline already."""
        if not self._stuck:
            self.deadline = self._soon(seconds)

    def _soon(self, seconds: float) -> float:
        return self.connections.now + seconds
