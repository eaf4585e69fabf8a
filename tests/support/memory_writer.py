import asyncio
from collections.abc import Callable, Collection

from dpstream.pipeline.collector.batch_writer import WriteError


class MemoryWriter:
    """Writer that stores its input and can be set to fail or block."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bytes]] = []
        self.requested: list[bytes] = []
        self.fails = 0
        self.gate: asyncio.Event | None = None
        self.fails_of: Callable[[str], bool] = lambda topic: True
        self.appended: Callable[[], int | None] = lambda: None
        self.ids: dict[str, str] = {}

    async def start(self) -> None:
        pass

    async def write(
        self, topic: str, partition: int, value: bytes, key: bytes | None = None
    ) -> int | None:
        self.requested.append(value)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails and self.fails_of(topic):
            self.fails -= 1
            raise WriteError("away")
        self.records.append((topic, partition, value))
        return self.appended()

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return {name: self.ids[name] for name in topics if name in self.ids}

    async def stop(self) -> None:
        pass

    def of(self, topic: str) -> list[bytes]:
        return [value for name, _, value in self.records if name == topic]
