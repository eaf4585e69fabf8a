"""The partials of a deployment: the first complete one of every epoch."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.actions import LogRecord
from pipeline.epochs import EpochSet
from topics.frames import CodecError
from topics.partials import PartialPart, decode_partial, join_parts


class PartialLog:
    """Puts the parts of partials together, in log order.

    Args:
        on_partial: is shown the epoch and the payload of every epoch's first complete partial.
    """

    def __init__(
        self,
        deployment: bytes,
        fingerprint: bytes,
        on_partial: Callable[[int, bytes], None] | None = None,
    ) -> None:
        self._identity = (deployment, fingerprint)
        self._on_partial = on_partial
        self._parts: dict[int, dict[tuple[bytes, int, int], dict[int, PartialPart]]] = {}
        self.complete = EpochSet()

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the topic."""
        try:
            part = decode_partial(record.value)
        except CodecError:
            return
        if (part.deployment, part.fingerprint) != self._identity or part.epoch in self.complete:
            return
        partial = (part.attempt, part.total, part.manifest_offset)
        parts = self._parts.setdefault(part.epoch, {}).setdefault(partial, {})
        parts.setdefault(part.index, part)
        if len(parts) < part.total:
            return
        del self._parts[part.epoch]
        self.complete.add(part.epoch)
        if self._on_partial is not None:
            self._on_partial(part.epoch, join_parts(parts.values()))
