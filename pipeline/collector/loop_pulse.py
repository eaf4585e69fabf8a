"""Whether an event loop ticks, for whoever asks from another thread."""

from __future__ import annotations

import time
from typing import Final

from pipeline.kafka.workers.health import Health

_AWAY_SECONDS: Final = 10.0


class LoopPulse:
    """When an event loop has ticked last."""

    def __init__(self) -> None:
        self._ticked = time.monotonic()

    def tick(self) -> None:
        """The loop has gone round."""
        self._ticked = time.monotonic()

    def liveness(self) -> Health:
        """Whether it does; a broker that is away is not held against it."""
        if time.monotonic() - self._ticked > _AWAY_SECONDS:
            return Health(False, "the event loop does not tick")
        return Health(True, "alive")
