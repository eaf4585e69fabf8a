"""Waiting for a broker that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka.errors import KafkaError, KafkaTimeoutError

RETRY_SECONDS = 0.5

T = TypeVar("T")


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat `attempt` until it works, or raises an error that waiting does not cure."""
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            if not (error.retriable or isinstance(error, KafkaTimeoutError)):
                raise
        await asyncio.sleep(RETRY_SECONDS)
