"""Format of a protocol's reports, independent of their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """Format of messages: rows of unsigned integers.

    >>> MessageFormat(np.dtype("<u2"), width=3).report_bytes
    6

    Attributes:
        dtype: Unsigned, little-endian, 1, 2, 4 or 8 bytes.
        width: Integers per report.
        distinct: Exclusive upper bound if reports are single integers, few enough for a table of
            their counts; otherwise None.
    """

    dtype: np.dtype[Any]
    width: int = 1
    distinct: int | None = None

    def __post_init__(self) -> None:
        if self.dtype.kind != "u" or self.dtype.newbyteorder("<") != self.dtype or self.width < 1:
            raise ValueError(
                f"reports have {self.width} integers of type {self.dtype}; expected at least one "
                "little-endian unsigned integer"
            )
        if self.distinct is not None and (
            self.width > 1 or not 1 <= self.distinct <= 1 << 8 * self.dtype.itemsize
        ):
            raise ValueError(
                f"'distinct' is {self.distinct} and 'width' is {self.width}; expected width 1, and "
                f"'distinct' from 1 to {1 << 8 * self.dtype.itemsize}"
            )

    @property
    def report_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.width} x {self.dtype}"


def narrowest(words: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u1" if words <= 1 << 8 else "<u2" if words <= 1 << 16 else "<u4")
