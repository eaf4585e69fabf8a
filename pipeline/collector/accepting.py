"""Accept connections, and count each before its first byte, so that silent ones can be closed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from dpstream.pipeline.collector.http_connection import HttpConnection

if TYPE_CHECKING:
    from dpstream.pipeline.collector.http_connections import HttpConnections

_BACKLOG: Final = 4_096
# Pause before the next attempt when the machine has no more descriptors.
_PAUSE_SECONDS: Final = 0.1


class Listener:
    def __init__(
        self, connections: HttpConnections, sockets: list[socket.socket], tls: ssl.SSLContext | None
    ) -> None:
        self.sockets = sockets
        self._connections = connections
        self._tls = tls
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(each)) for each in sockets]
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        port: int = self.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for each in self.sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                made, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if not self._connections.accept(made, address[0]):
                made.close()
                continue
            task = loop.create_task(self._open(made))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, made: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        seconds = None if self._tls is None else self._connections.limits.head_seconds
        # A client that does not speak TLS, or disconnects, is not an error.
        with suppress(OSError):
            await loop.connect_accepted_socket(
                partial(HttpConnection, self._connections, made),
                made,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        self._connections.forget(made)


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host; raise OSError if that fails."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        made = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(made)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setblocking(False)
            made.bind(address)
            made.listen(_BACKLOG)
        except OSError:
            for each in sockets:
                each.close()
            raise
    return sockets
