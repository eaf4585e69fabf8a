"""A worker that is ended says so, and says nothing after it: else it would be taken for lost."""

import asyncio
import json
import math
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers import resting
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.resting import Resting
from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.worker import _Process
from dpstream.pipeline.stages.rests import Rest
from dpstream.topics.names import Role


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


def test_nothing_is_said_after_the_goodbye(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    async def write(action: Append) -> None:
        said.append(json.loads(action.value))

    async def end_between_two_heartbeats() -> None:
        process = process_of(SimpleNamespace(heartbeat=dict), tmp_path)
        process.log = cast(Any, SimpleNamespace(write=write))
        process.execution = cast(Any, SimpleNamespace(records=0, positions={}))
        heartbeats = asyncio.create_task(process._tell_status())
        await asyncio.sleep(0)
        await process._say_goodbye()
        await heartbeats

    asyncio.run(end_between_two_heartbeats())
    assert [each.get("stopped") for each in said] == [None, True]


class EnoughError(Exception):
    """It was looked often enough."""


@pytest.mark.parametrize("done", [0, 1])
def test_who_was_woken_and_has_written_something_rests_no_sooner_than_asked(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was woken for nothing rests at once, here after no time at all."""
    monkeypatch.setattr(resting, "FOUND_NOTHING", 0.0)
    looks = 0

    def rests() -> float:
        nonlocal looks
        looks += 1
        if looks == 20:
            raise EnoughError
        return 1.0

    async def find_rest(roles: object) -> Rest:
        return Rest({}, 1.0)

    async def rest() -> Rest | None:
        process = process_of(
            SimpleNamespace(rests=rests), tmp_path, resting=Resting(3600.0, (), "1")
        )
        process.ended = asyncio.get_running_loop().create_future()
        process.execution = cast(
            Any, SimpleNamespace(records=0, done=done, restored=True, positions={0: 7})
        )
        process.ends = {0: 7}
        monkeypatch.setattr(_Process, "_find_rest", lambda process, roles: find_rest(roles))
        with suppress(EnoughError):
            await process._rest_when_idle()
        return process.rest

    found = asyncio.run(rest())
    assert (found is None) == (done == 1)
    assert looks == (20 if done else 1)


def test_a_rest_names_the_ends_in_the_order_of_the_partitions(tmp_path: Path) -> None:
    """The client tells them in the order in which it was answered."""
    ends = {Role.REPORTS: {2: 0, 1: 7, 0: 4}, Role.PRODUCERS: {0: 3}}

    async def end_offsets(role: Role, partitions: object) -> dict[int, int]:
        return ends[role]

    async def committed(partition: int) -> int:
        return ends[Role.REPORTS][partition]

    async def tick() -> None:
        pass

    async def rest() -> Rest | None:
        stage = SimpleNamespace(role=Role.REPORTS, rests=lambda: math.inf)
        process = process_of(stage, tmp_path)
        process.job = cast(
            Any, SimpleNamespace(start_offsets={Role.REPORTS: (0, 0, 0), Role.PRODUCERS: (0,)})
        )
        process.log = cast(Any, SimpleNamespace(end_offsets=end_offsets))
        process.execution = cast(
            Any,
            SimpleNamespace(
                tick=tick,
                restored=True,
                positions={0: 4, 1: 7, 2: 0},
                membership=SimpleNamespace(committed=committed),
            ),
        )
        return await process._find_rest((Role.REPORTS, Role.PRODUCERS))

    assert asyncio.run(rest()) == Rest({Role.REPORTS: (4, 7, 0), Role.PRODUCERS: (3,)})
