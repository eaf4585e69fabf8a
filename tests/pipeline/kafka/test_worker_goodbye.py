"""A worker that is ended says so, and says nothing after it: else it would be taken for lost."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pipeline.actions import Append
from pipeline.kafka.broker_clock import BrokerClock
from pipeline.kafka.connection import Connection
from pipeline.kafka.workers.log_lines import LogLines
from pipeline.kafka.workers.timings import Timings
from pipeline.kafka.workers.worker import _Process


def test_nothing_is_said_after_the_goodbye(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    async def write(action: Append) -> None:
        said.append(json.loads(action.value))

    async def end_between_two_heartbeats() -> None:
        process = _Process(
            cast(Any, SimpleNamespace(heartbeat=dict)),
            cast(Any, SimpleNamespace(deployment=bytes(16))),
            Connection(("nowhere:9092",)),
            "shuffle",
            "w1",
            tmp_path,
            Timings(status=0.01),
            LogLines("small", "shuffle", "w1"),
            BrokerClock(),
        )
        process.log = cast(Any, SimpleNamespace(write=write))
        process.execution = cast(Any, SimpleNamespace(records=0, positions={}))
        heartbeats = asyncio.create_task(process._tell_status())
        await asyncio.sleep(0)
        await process._say_goodbye()
        await heartbeats

    asyncio.run(end_between_two_heartbeats())
    assert [each.get("stopped") for each in said] == [None, True]
