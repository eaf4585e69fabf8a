"""Connections to brokers that say nothing any more are closed, and soon.

A broker that is switched off or cut off closes no connection. Systems go on sending to it for a
quarter of an hour, and clients that give up waiting for an answer keep the connection and ask there
again, also who leads a partition by now. A connection that the system has closed, they leave alone.
New calls to such a broker are given up, too, before they hold up what the others would answer.

A broker that is merely slow, or paused, is not meant: its system acknowledges what arrives.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

SILENCE_SECONDS = 10
"""For so long nothing that was sent may be acknowledged by the other end's system."""
CALL_SECONDS = 5.0
"""So long may it take to connect, with TLS but without anything that the broker itself says."""
# Without anything to send, an idle connection is tried after so many seconds, and so often.
_IDLE_SECONDS, _TRIAL_SECONDS, _TRIALS = 4, 2, 3
# Who does not answer is called a second time, after a second, and given up after two more.
_CALLS_REPEATED = 1

_WANTED = (
    ("TCP_USER_TIMEOUT", SILENCE_SECONDS * 1000),
    ("TCP_KEEPIDLE", _IDLE_SECONDS),
    ("TCP_KEEPINTVL", _TRIAL_SECONDS),
    ("TCP_KEEPCNT", _TRIALS),
    ("TCP_SYNCNT", _CALLS_REPEATED),
)


def socket_options() -> Sequence[tuple[int, int, int]]:
    """Arguments of ``setsockopt``; those that this system does not know are left out."""
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
    """Have all connections that aiokafka makes from now on in this process, for Faust too, closed.

    It has no setting for the options of sockets, and calls for as long as it waits for an answer,
    40 seconds, while all other new connections of the same client wait.
    """
    # Takes a quarter of a second to import, which not every user of this module needs.
    from aiokafka import conn

    if issubclass(conn.AIOKafkaProtocol, _Watching):
        return

    class WatchedProtocol(_Watching, conn.AIOKafkaProtocol):  # type: ignore[misc]
        """aiokafka's own, on a socket that is watched."""

    class ShortlyCalling(_ShortlyCalling, conn.AIOKafkaConnection):  # type: ignore[misc]
        """aiokafka's own, which is soon there or not at all."""

    conn.AIOKafkaProtocol = WatchedProtocol
    conn.AIOKafkaConnection = ShortlyCalling


class _Watching:
    """Sets the options of a connection's socket when it is made."""

    def connection_made(self, transport: object) -> None:
        connected = transport.get_extra_info("socket")  # type: ignore[attr-defined]
        for option in socket_options():
            connected.setsockopt(*option)
        super().connection_made(transport)  # type: ignore[misc]


class _ShortlyCalling:
    """Gives a call up that is not answered, with a `TimeoutError`, which aiokafka expects."""

    _limit: asyncio.Timeout

    async def connect(self) -> object:
        async with asyncio.timeout(CALL_SECONDS) as self._limit:
            return await super().connect()  # type: ignore[misc]

    def _create_reader_task(self) -> object:
        # Called once somebody has answered: what the broker says now may take longer.
        self._limit.reschedule(None)
        return super()._create_reader_task()  # type: ignore[misc]
