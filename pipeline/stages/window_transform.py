"""What a stage makes of the windows that it reads in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

from dpstream.pipeline.actions import Steps
from dpstream.topics.chunks import Chunk
from dpstream.topics.names import Role

Content = TypeVar("Content")


class WindowTransform(ABC, Generic[Content]):
    """Makes something of windows, attempt by attempt.

    Attributes:
        role: the topic whose chunks it reads.
        partials: the topic whose complete partials say which windows are finished.
        writes_once: whether a window that this worker has written is finished at once, and not only
            when its partial is complete.
        counts: what a heartbeat tells of it.
    """

    role: Role = Role.SHUFFLED
    partials: Role = Role.PARTIALS
    writes_once: bool = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def begin(self) -> Content:
        """What the chunks of an attempt are added to."""

    @abstractmethod
    def add(self, content: Content, chunk: Chunk) -> None:
        """Add a chunk; raises `ValueError` for one that is refused, and then leaves all as is."""

    def end(self, content: Content) -> None:
        """Release what an attempt holds, which is not needed any more."""

    @abstractmethod
    def write(self, chunk: Chunk, parts: Sequence[Content]) -> Steps[None]:
        """Write a window that is complete with this chunk, up to what is to be flushed.

        Its parts are what the shuffle instances wrote of it, first the first one's.
        """
