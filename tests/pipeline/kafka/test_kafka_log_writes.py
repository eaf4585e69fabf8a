"""Where what was appended lies is told by acknowledgements, as far as these know it."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dpstream.pipeline.actions import Append, Ends
from dpstream.pipeline.kafka.workers.kafka_log import KafkaLog
from dpstream.topics.names import Role

OWN_TIME, BROKERS_TIME = 0, 1
PLACE = Role.MANIFESTS, 0


def flushed(
    monkeypatch: pytest.MonkeyPatch, batches: Sequence[Sequence[tuple[int, int]]]
) -> list[Ends]:
    """What flushes reply after records acknowledged by such offsets and types of timestamps."""

    async def main() -> list[Ends]:
        log = KafkaLog({"bootstrap_servers": "127.0.0.1:9"}, lambda role: f"job.{role}")
        sent: list[asyncio.Future[Any]] = []

        async def send(*of: object, **how: object) -> asyncio.Future[Any]:
            sent.append(asyncio.get_running_loop().create_future())
            return sent[-1]

        monkeypatch.setattr(log._producer, "send", send)
        replies = []
        for batch in batches:
            for _ in batch:
                await log.append(Append(*PLACE, b"manifest"))
            for (offset, kind), future in zip(batch, sent, strict=True):
                future.set_result(SimpleNamespace(offset=offset, timestamp=1, timestamp_type=kind))
            sent.clear()
            replies.append(await log.flush())
        await log.stop()
        return replies

    return asyncio.run(main())


def test_a_flush_tells_where_the_last_record_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[(7, BROKERS_TIME)], [], [(9, BROKERS_TIME), (10, BROKERS_TIME)]]
    assert flushed(monkeypatch, batches) == [{PLACE: 8}, {PLACE: 8}, {PLACE: 11}]


def test_offsets_that_no_broker_has_said_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that is there already the client reckons offsets from -1 on."""
    batches = [[(7, BROKERS_TIME)], [(-1, OWN_TIME), (0, OWN_TIME)], [(12, BROKERS_TIME)]]
    assert flushed(monkeypatch, batches) == [{PLACE: 8}, {}, {PLACE: 13}]
