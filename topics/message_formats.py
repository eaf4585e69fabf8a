"""Format of a protocol's reports, independent of their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Rows of unsigned words, all of one format.

    >>> MessageFormat(np.dtype("<u2"), width=3).report_bytes
    6

    Attributes:
        dtype: Unsigned, little-endian, of 1, 2, 4 or 8 bytes.
        width: Words of a report.
        distinct: Exclusive upper bound if reports are single words from 0, few enough for a table
            of their counts; otherwise None.
    """

    dtype: np.dtype[Any]
    width: int = 1
    distinct: int | None = None

    def __post_init__(self) -> None:
        if self.dtype.kind != "u" or self.dtype.newbyteorder("<") != self.dtype or self.width < 1:
            raise ValueError(
                f"reports of {self.width} words of {self.dtype} are invalid; expected at least "
                "one little-endian unsigned word"
            )
        if self.distinct is not None and (
            self.width > 1 or not 1 <= self.distinct <= 1 << 8 * self.dtype.itemsize
        ):
            raise ValueError(
                f"{self.distinct} different reports of {self.width} words of {self.dtype}"
            )

    @property
    def report_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.width} x {self.dtype}"


def narrowest(words: int) -> np.dtype[np.unsignedinteger]:
    """Return the dtype for words from 0 to `words`, exclusive."""
    return np.dtype("<u1" if words <= 1 << 8 else "<u2" if words <= 1 << 16 else "<u4")
