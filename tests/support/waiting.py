"""Wait with a timeout for conditions that other tasks of the event loop bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TIMEOUT = 60.0
"""Timeout in seconds, far longer than any expected wait."""


async def until(condition: Callable[[], object]) -> None:
    """Run other tasks until a condition holds, or raise TimeoutError after a minute."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0)
