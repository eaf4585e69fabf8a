"""Aggregators of populations in which each device permanently belongs to one part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.law_aggregator import LawAggregator, LawT

_LENGTH_BYTES = 8


class PartCounts(Protocol):
    @property
    def law(self) -> Any: ...

    def check_messages(self, epoch: int, words: NDArray[Any]) -> None: ...

    def add(self, epoch: int, words: NDArray[Any], counts: NDArray[Any] | None) -> None: ...

    def merge(self, other: Any) -> None: ...

    def to_bytes(self) -> bytes: ...

    @classmethod
    def from_bytes(cls, law: Any, data: bytes) -> Self: ...


PartT = TypeVar("PartT", bound=PartCounts)


class DividedCounts(LawAggregator[LawT], Generic[LawT, PartT]):
    part_name: ClassVar[str]
    """Name of a part in messages, such as "level"."""

    def __init__(self, law: LawT, parts: Sequence[PartT]) -> None:
        super().__init__(law)
        self.parts = [*parts]

    @abstractmethod
    def by_part(
        self, words: NDArray[Any]
    ) -> Iterator[tuple[PartT, NDArray[np.bool_] | slice, NDArray[Any]]]:
        """Yield parts, the positions of their messages, and the messages without the part."""

    def check_parts(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        for part, _, own in self.by_part(words):
            part.check_messages(epoch, own)

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        for part, where, own in self.by_part(words):
            part.add(epoch, own, None if counts is None else counts[where])

    def _merge(self, other: Self) -> None:
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.merge(theirs)

    def to_bytes(self) -> bytes:
        """Serialize the length (uint64) and state of every part; the bytes are canonical."""
        states = [part.to_bytes() for part in self.parts]
        return b"".join(len(state).to_bytes(_LENGTH_BYTES, "little") + state for state in states)

    def read_parts(self, data: bytes) -> Self:
        start = 0
        for index, part in enumerate(self.parts):
            begin = start + _LENGTH_BYTES
            start = begin + int.from_bytes(data[start:begin], "little")
            if start > len(data) or begin > len(data):
                raise ValueError(
                    f"counts are truncated after {len(data)} bytes, within {self.part_name} "
                    f"{index + 1}"
                )
            self.parts[index] = type(part).from_bytes(part.law, data[begin:start])
        if start != len(data):
            raise ValueError(
                f"counts are {len(data)} bytes long; expected {start} for {len(self.parts)} "
                f"{self.part_name}s"
            )
        return self
