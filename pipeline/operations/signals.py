"""Defer stop signals, so that they are handled at chosen moments."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class SignaledError(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Record SIGINT, SIGTERM and SIGHUP instead of letting them interrupt this process.

    A signal therefore cannot interrupt this process between starting a child and recording that
    child. A signal that was already ignored (``nohup``) stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> Self:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.received:
            raise SignaledError(self.received[0])

    def hurry(self) -> bool:
        return len(self.received) > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
