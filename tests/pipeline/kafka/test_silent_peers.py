"""A connection to a broker that is gone without a word is closed by the system, and soon."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from aiokafka import conn

from dpstream.pipeline.kafka import silent_peers
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.silent_peers import (
    SILENCE_SECONDS,
    close_silent_connections,
    socket_options,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")


def test_sockets_are_given_up_within_seconds_and_calls_within_less() -> None:
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


def test_what_connects_tools_to_brokers_has_these_options() -> None:
    assert Connection(("a:1",)).kafka_python()["socket_options"] == list(socket_options())


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka's connections are watched, during a test."""
    for name in ("AIOKafkaProtocol", "AIOKafkaConnection"):
        monkeypatch.setattr(conn, name, getattr(conn, name))
    close_silent_connections()


def test_connections_are_made_watched_once(closing: None) -> None:
    once = conn.AIOKafkaProtocol, conn.AIOKafkaConnection
    close_silent_connections()
    assert (conn.AIOKafkaProtocol, conn.AIOKafkaConnection) == once


def test_what_connects_workers_and_collectors_to_brokers_has_these_options(
    closing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []

    async def connect() -> list[int]:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        made = conn.AIOKafkaConnection(
            "127.0.0.1", server.sockets[0].getsockname()[1], request_timeout_ms=10_000
        )
        found: list[int] = []

        def send(request: object) -> None:
            """Is told first to ask for versions, as soon as it is connected."""
            limits.append(made._limit.when())
            connected = made._writer.get_extra_info("socket")
            found.extend(connected.getsockopt(*option[:2]) for option in socket_options())

        monkeypatch.setattr(made, "send", send)
        with pytest.raises(TypeError):
            await made.connect()
        server.close()
        return found

    assert [bool(value) for value in asyncio.run(connect())] == [True] * len(socket_options())
    # For an answer of a broker that is there they wait as long as they would have.
    assert limits == [None]


def test_a_call_that_nobody_answers_is_given_up_soon(
    closing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_peers, "CALL_SECONDS", 0.02)

    async def call(port: int) -> None:
        async with asyncio.timeout(60.0) as patience:
            with pytest.raises(TimeoutError):
                await conn.create_conn("127.0.0.1", port, request_timeout_ms=120_000)
        assert not patience.expired()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # A system answers no calls beyond those that wait to be taken.
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            asyncio.run(call(full.getsockname()[1]))
        finally:
            for each in waiting:
                each.close()
