"""Wait for a broker that does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka.errors import KafkaError, KafkaTimeoutError


class Outage:
    """Track whether the broker answers, given the result of every request.

    >>> outage = Outage("127.0.0.1:9092", print, clock=iter([0.0, 40.0]).__next__)
    >>> outage.note(answered=False)  # doctest: +ELLIPSIS
    broker 127.0.0.1:9092 unreachable since ...; waiting
    >>> outage.note(answered=False)
    >>> outage.note(answered=True)
    broker is back after 40 s
    """

    def __init__(
        self,
        servers: str,
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._report = report
        self._clock = clock
        self._since: float | None = None

    @property
    def over(self) -> bool:
        return self._since is None

    def note(self, *, answered: bool) -> None:
        if not answered and self._since is None:
            self._since = self._clock()
            now = time.strftime("%H:%M:%S")
            self._report(f"broker {self._servers} unreachable since {now}; waiting")
        elif answered and self._since is not None:
            self._report(f"broker is back after {self._clock() - self._since:.0f} s")
            self._since = None


RETRY_SECONDS = 0.5

T = TypeVar("T")


async def repeat_until_answered(attempt: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            if not (error.retriable or isinstance(error, KafkaTimeoutError)):
                raise
        await asyncio.sleep(RETRY_SECONDS)
