"""Multisets of messages: each distinct message once, with its count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class CountedMessages:
    """Distinct messages with counts.

    `values` are unsigned, shape (rows, width), strictly increasing. `counts` are uint32 or uint64,
    at least 1.

    >>> CountedMessages.of_cells(np.array([0, 2, 1]), np.dtype("u1")).written_out().tolist()
    [[1], [1], [2]]
    """

    values: NDArray[np.unsignedinteger]
    counts: NDArray[np.unsignedinteger]

    @classmethod
    def of_cells(
        cls, counts: NDArray[np.integer], dtype: np.dtype[np.unsignedinteger]
    ) -> CountedMessages:
        """Convert `counts`, shape (cells,): how often each of the messages 0, 1, ... occurs."""
        words = np.flatnonzero(counts)
        occurring = counts[words]
        narrow = occurring.max(initial=0) < 1 << 32
        return cls(
            words.astype(dtype)[:, None], occurring.astype(np.uint32 if narrow else np.uint64)
        )

    @property
    def messages(self) -> int:
        return int(self.counts.sum(dtype=np.uint64))

    def written_out(self) -> NDArray[np.unsignedinteger]:
        """Return every message as a row of its own; shape (messages, width)."""
        return np.repeat(self.values, self.counts.astype(np.intp), axis=0)


Reports: TypeAlias = NDArray[np.unsignedinteger] | CountedMessages


def written_out(reports: Reports) -> NDArray[np.unsignedinteger]:
    return reports.written_out() if isinstance(reports, CountedMessages) else reports
