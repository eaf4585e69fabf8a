"""Test that the operating system soon closes connections to a vanished broker."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from aiokafka import conn

from dpstream.pipeline.kafka import silent_peers
from dpstream.pipeline.kafka.silent_peers import (
    SILENCE_SECONDS,
    close_silent_connections,
    socket_options,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests socket options of Linux")


def test_stalled_sockets_and_connection_attempts_time_out() -> None:
    with socket.socket() as given:
        for option in socket_options():
            given.setsockopt(*option)
        limit = given.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit == SILENCE_SECONDS * 1000
        idle, trial, trials, calls = (
            given.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_SYNCNT,
            )
        )
        assert idle + trial * trials <= SILENCE_SECONDS
        assert 2 ** (calls + 1) - 1 < SILENCE_SECONDS / 2
        assert given.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIOKafkaProtocol", "AIOKafkaConnection"):
        monkeypatch.setattr(conn, name, getattr(conn, name))
    close_silent_connections()


def test_unanswered_connection_attempt_times_out(
    closing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_peers, "CALL_SECONDS", 0.02)

    async def call(port: int) -> None:
        async with asyncio.timeout(60.0) as timeout:
            with pytest.raises(TimeoutError):
                await conn.create_conn("127.0.0.1", port, request_timeout_ms=120_000)
        assert not timeout.expired()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # The operating system accepts no connections beyond the backlog.
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            asyncio.run(call(full.getsockname()[1]))
        finally:
            for each in waiting:
                each.close()
