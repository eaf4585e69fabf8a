"""Close stalled broker connections quickly.

* A broker that is switched off or cut off from the network does not close its connections.
  Operating systems keep sending to it for 15 minutes. Until then, clients reuse the connection even
  after a timeout, and even to find out which broker leads a partition.
* New connection attempts to such a broker are also aborted, before they block other requests.
* A slow or paused broker is unaffected: its operating system acknowledges the data.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

SILENCE_SECONDS = 10
"""Maximum seconds until the peer's operating system acknowledges sent data."""
CALL_SECONDS = 5.0
"""Maximum seconds to connect, including the TLS handshake but not any response from the broker."""
# Keep-alive of an idle connection: first probe and interval in seconds, number of probes.
_IDLE_SECONDS, _TRIAL_SECONDS, _TRIALS = 4, 2, 3
# An unanswered connection attempt is repeated after one second, and aborted after two more.
_CALLS_REPEATED = 1

_WANTED = (
    ("TCP_USER_TIMEOUT", SILENCE_SECONDS * 1000),
    ("TCP_KEEPIDLE", _IDLE_SECONDS),
    ("TCP_KEEPINTVL", _TRIAL_SECONDS),
    ("TCP_KEEPCNT", _TRIALS),
    ("TCP_SYNCNT", _CALLS_REPEATED),
)


def socket_options() -> Sequence[tuple[int, int, int]]:
    return (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *(
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in _WANTED
            if hasattr(socket, name)
        ),
    )


def close_silent_connections() -> None:
    """Apply this module's timeouts to all later aiokafka connections of the process, even Faust's.

    aiokafka has no setting for socket options. Its connect timeout is its request timeout of 40
    seconds, during which all other new connections of the client wait.
    """
    # Import on demand: it takes a quarter of a second.
    from aiokafka import conn

    if issubclass(conn.AIOKafkaProtocol, _Watching):
        return

    class WatchedProtocol(_Watching, conn.AIOKafkaProtocol):  # type: ignore[misc]
        pass

    class ShortlyCalling(_ShortlyCalling, conn.AIOKafkaConnection):  # type: ignore[misc]
        pass

    conn.AIOKafkaProtocol = WatchedProtocol
    conn.AIOKafkaConnection = ShortlyCalling


class _Watching:
    def connection_made(self, transport: object) -> None:
        connected = transport.get_extra_info("socket")  # type: ignore[attr-defined]
        for option in socket_options():
            connected.setsockopt(*option)
        super().connection_made(transport)  # type: ignore[misc]


class _ShortlyCalling:
    """Abort an unanswered connection attempt with a `TimeoutError`, as aiokafka expects."""

    _limit: asyncio.Timeout

    async def connect(self) -> object:
        async with asyncio.timeout(CALL_SECONDS) as self._limit:
            return await super().connect()  # type: ignore[misc]

    def _create_reader_task(self) -> object:
        # Called once connected: later responses from the broker can take longer.
        self._limit.reschedule(None)
        return super()._create_reader_task()  # type: ignore[misc]
