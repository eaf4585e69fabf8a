"""Being told to stop, at moments of our own choosing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class SignalledError(Exception):
    """A signal asked us to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Takes note of SIGINT, SIGTERM and SIGHUP, which then interrupt nothing.

    So there is no moment between the start of a process and our knowing of it. A signal that was
    ignored (``nohup``) stays ignored.
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
        """Stop if asked to.

        Raises:
            SignalledError: a signal has come.
        """
        if self.received:
            raise SignalledError(self.received[0])

    def hurry(self) -> bool:
        """Whether a second signal has come: somebody does not want to wait."""
        return len(self.received) > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
