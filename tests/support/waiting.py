"""Waiting for something that other tasks of the event loop bring about, though not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds: far more than is needed, on however slow a machine."""


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until it holds.

    Raises:
        TimeoutError: it did not within a minute.
    """
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)
