"""A collector's HTTP/1.1 connection: httptools parses the input, and all buffers are bounded.

Reading pauses while the client does not receive answers, so a connection's memory does not grow
with its requests. Answers are sent in the order of their requests.
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
# A body sent in chunks of one byte is six times as long.
_SPREAD: Final = 6
# Slice size outside bodies: a slice holds few requests.
_SLICE_BYTES: Final = 1 << 10
_LINGERING_SECONDS: Final = 2.0
_BUSY_SECONDS: Final = 5
# Maximum number of digits in a content length.
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
    """Position of an answer in a connection's sequence; call the slot once with the answer.

    `headers` are sent with any answer. With `head_only`, the body is omitted. With `closes`, the
    connection is closed after this answer.
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
        self.answer = answer
        self.closes |= self._connection.connections.closing
        self._connection.drain()


class HttpConnection(asyncio.Protocol):
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
        # Input that is not parsed yet, because earlier answers wait.
        self._unread = b""
        self._buffered_bytes = 0
        self._at_once = 0
        self._reads = False
        self._in_head = False
        self._in_body = False
        self._ended = False
        self._paused = False
        self._stuck = False
        self._lingers = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.connections.enter(self)
        self._wait(self._limits.head_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        """Drop the connection; processing of accepted requests continues."""
        self._ended = True
        self._let_go()
        self.connections.leave(self)

    def eof_received(self) -> bool:
        """Handle the end of input; return whether answers remain to be sent."""
        transport = self._transport
        if self._ended or not self._slots or transport is None or not transport.can_write_eof():
            return False
        self._ended = True
        self._let_go()
        self._slots[-1].closes = True
        return True

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._at_once = 0
        # Input remains if the transport had read it before reading was paused.
        self._read(self._unread + data if self._unread else data)

    def on_message_begin(self) -> None:
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
        self._head_bytes += len(url)
        self._request.path += url
        if self._head_bytes > self._limits.path_bytes:
            self._reject(RequestProblem.URI.answer())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header for httptools; trailers after the body are ignored."""
        if self._in_body:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes:
            self._reject(RequestProblem.HEADERS.answer())
            return
        name = name.lower()
        if name in _WANTED:
            headers = self._request.headers
            # Duplicate headers are joined, which makes the value invalid.
            headers[name] = value if name not in headers else headers[name] + b", " + value
        elif name == b"content-length":
            if not value.isdigit():
                self._reject(RequestProblem.MALFORMED.answer())
            elif len(value) > _DIGITS or int(value) > self._limits.body_bytes:
                self._reject(RequestProblem.TOO_LARGE.answer())
            else:
                self._body_left = int(value)

    def on_headers_complete(self) -> None:
        if self._ended:
            return
        self._in_head, self._in_body = False, True
        self._fed_bytes = 0
        request = self._request
        request.path = request.path.partition(b"?")[0]
        request.method = self._parser.get_method().decode("ascii")
        self._allow(self._limits.body_seconds)
        rejection = self.connections.look(request)
        if rejection is not None:
            self._reject(rejection)
            return
        expected = request.headers.get(b"expect")
        if expected is not None:
            if expected.lower() != b"100-continue":
                self._reject(RequestProblem.EXPECTATION.answer())
            elif not self._slots and self._transport is not None:
                self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        if self._ended:
            return
        if len(self._body) + len(body) > self._limits.body_bytes:
            self._reject(RequestProblem.TOO_LARGE.answer())
            return
        self._body_left = max(0, self._body_left - len(body))
        if not self._body:
            self._body = body
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def on_message_complete(self) -> None:
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
        """Send answers up to the first unfinished answer, as long as the client receives them."""
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
        """Stop reading while the client does not receive answers, up to a timeout."""
        self._stuck = True
        self._pause()
        self.connections.idle.pop(self, None)
        self.connections.unfinished[self] = None
        self.deadline = self._soon(self._limits.reading_seconds)

    def resume_writing(self) -> None:
        self._stuck = False
        if self._transport is None or self._transport.is_closing():
            return
        self.connections.unfinished.pop(self, None)
        self.deadline = self._soon(self._limits.answer_seconds)
        self.drain()

    def too_slow(self) -> None:
        if (self._in_head or self._in_body) and not self._stuck and not self._ended:
            self._reject(RequestProblem.TIMEOUT.answer())
        else:
            self.abort()

    def abort(self) -> None:
        self._ended = True
        self._let_go()
        self._slots.clear()
        self.connections.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def _read(self, data: bytes) -> None:
        """Parse input as long as the client receives answers, and buffer the remaining input."""
        self._reads = True
        view = memoryview(data)
        while view and not self._ended and not self._is_full():
            # Feed all of a body with a known length, and nothing after it.
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
            self._reject(RequestProblem.INTERNAL.answer())
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            self._reject(RequestProblem.MALFORMED.answer())
        # The parser buffers an incomplete element completely.
        self._fed_bytes += len(data)
        if self._in_head and self._fed_bytes > self._limits.head_bytes + len(data):
            self._reject(RequestProblem.HEADERS.answer())
        elif self._in_body and self._fed_bytes > _SPREAD * self._limits.body_bytes + len(data):
            self._reject(RequestProblem.TOO_LARGE.answer())

    def _is_full(self) -> bool:
        most = self._limits.pipelined
        return self._stuck or len(self._slots) >= most or self._at_once >= most

    def _go_on(self) -> None:
        if self._ended or self._stuck or self._transport is None:
            return
        if self._unread:
            self._at_once = 0
            if not self._is_full():
                self._read(self._unread)
        else:
            self._rest()

    def _rest(self) -> None:
        """Wait for the next event: an answer is ready or was received, or a request arrives."""
        if self._ended:
            return
        if self._unread or self._is_full():
            self._pause()
            if not self._stuck and len(self._slots) < self._limits.pipelined:
                # Let other connections run first.
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
        change = len(self._body) + len(self._unread) - self._buffered_bytes
        if not change:
            return
        if change < 0:
            self.connections.release(-change)
        elif not self.connections.hold(change):
            self._reject(RequestProblem.BUSY.answer(retry_after=_BUSY_SECONDS))
            return
        self._buffered_bytes += change

    def _let_go(self) -> None:
        self._body = self._unread = b""
        self.connections.release(self._buffered_bytes)
        self._buffered_bytes = 0

    def _reject(self, answer: HttpResponse) -> None:
        """Reject a request that cannot be read completely, after earlier answers, and close."""
        if self._ended:
            return
        # Read nothing more; earlier slots are still answered.
        self._ended = True
        # A client that is still sending would not read the answer if the connection closed.
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
            # Further input is read and discarded.
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
        self._fed_bytes = 0
        self.connections.unfinished.pop(self, None)
        self.connections.idle.pop(self, None)
        self.connections.idle[self] = None
        self._allow(seconds)

    def _allow(self, seconds: float) -> None:
        """Set the deadline for the next event, unless the one for receiving answers applies."""
        if not self._stuck:
            self.deadline = self._soon(seconds)

    def _soon(self, seconds: float) -> float:
        return self.connections.now + seconds
