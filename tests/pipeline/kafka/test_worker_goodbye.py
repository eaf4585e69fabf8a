"""A worker that is ended says so, and says nothing after it: else it would be taken for lost."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dpstream.pipeline.actions import Append
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.worker import _Process


def process_of(stage: object, folder: Path, **more: Any) -> _Process:
    """A worker's process that has no cluster."""
    return _Process(
        cast(Any, stage),
        cast(Any, SimpleNamespace(deployment=bytes(16))),
        Connection(("nowhere:9092",)),
        "shuffle",
        "w1",
        folder,
        Timings(status=0.01, tick=0.001),
        LogLines("small", "shuffle", "w1"),
        BrokerClock(),
        **more,
    )


async def test_nothing_is_said_after_the_goodbye(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    async def write(action: Append) -> None:
        said.append(json.loads(action.value))

    process = process_of(SimpleNamespace(heartbeat=dict), tmp_path)
    process.log = cast(Any, SimpleNamespace(write=write))
    process.execution = cast(Any, SimpleNamespace(records=0, positions={}))
    heartbeats = asyncio.create_task(process._tell_status())
    await asyncio.sleep(0)
    await process._say_goodbye()
    await heartbeats
    assert [each.get("stopped") for each in said] == [None, True]
