"""Draws of a single device from bytes alone, the same in every language.

A device in a browser and one in Python have to draw the same words from the same bytes; numpy's
generators say nothing of how many bytes a draw takes. This one does:

* An integer from a range of n values takes no bytes if n is 1, and otherwise k of them, the least
  of 1, 2, 4 and 8 with n <= 2^8k. They are an unsigned integer v, little-endian.
* If v is below the largest multiple of n that is at most 2^8k, the integer is the least of the
  range plus v mod n. Otherwise k more bytes are taken, until it is. So all n are exactly equally
  likely.
* An array is filled element by element, in C order; each takes all its bytes before the next one.
  What dtype it has changes nothing.

Bytes are taken in order, and none is left over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike

ReadBytes: TypeAlias = Callable[[int], bytes]
"""Returns as many random bytes as it is asked for, `os.urandom` for one."""


class ByteGenerator:
    """What devices ask a generator for, made of bytes as the module says.

    >>> script = iter([bytes([255, 7]), bytes([3])])
    >>> ByteGenerator(lambda count: next(script)).integers(0, 5, 2).tolist()  # 255 is drawn again
    [2, 3]

    Args:
        read: where the bytes come from: cryptographic randomness, anything else in tests only.
    """

    def __init__(self, read: ReadBytes) -> None:
        self._read = read

    def bytes(self, length: int) -> bytes:
        """So many random bytes.

        Raises:
            ValueError: another number of them was read.
        """
        if length == 0:
            return b""
        read = self._read(length)
        if len(read) != length:
            raise ValueError(f"asked for {length} random bytes, {len(read)} were read")
        return read

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: int | tuple[int, ...] | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """Independent integers, each value of a range equally likely.

        Args:
            low: the least, or, without `high`, the end of a range from 0 on.
            high: the end of the range, not in it.
            size: shape of the array; None for a single integer.
            dtype: an integer type that holds the range.
            endpoint: the end belongs to the range.

        Returns:
            an array of this dtype, or a number of it.

        Raises:
            ValueError: the range is empty, or the dtype does not hold it.
        """
        least, end = (0, int(low)) if high is None else (int(low), int(high))
        values = end - least + endpoint
        kind = np.dtype(dtype)
        if values < 1:
            raise ValueError(f"no integers from {least} to below {least + values}")
        limits = np.iinfo(kind)
        if not limits.min <= least <= least + values - 1 <= limits.max:
            raise ValueError(f"integers from {least} to {least + values - 1} are none of {kind}")
        shape = () if size is None else size
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        steps = self._below(values, count)
        # Unsigned numbers wrap round: the sum is that of whole numbers, which the dtype holds.
        offset = np.uint64(least % (1 << 64))
        drawn = (steps + offset).astype(kind, casting="unsafe").reshape(shape)
        return drawn[()] if size is None else drawn

    def _below(self, values: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """So many integers from 0 to `values`, exclusive."""
        if values == 1:
            return np.zeros(count, np.uint64)
        width = next(width for width in (1, 2, 4, 8) if values <= 1 << 8 * width)
        largest = (1 << 8 * width) // values * values - 1
        taken = [np.zeros(0, np.uint64)]
        # Each element is the next number that is not rejected: so all of them can be read at once.
        while count:
            numbers = np.frombuffer(self.bytes(count * width), f"<u{width}").astype(np.uint64)
            taken.append(numbers[numbers <= np.uint64(largest)])
            count -= len(taken[-1])
        drawn = np.concatenate(taken)
        return drawn if values == 1 << 64 else drawn % np.uint64(values)


def byte_randomness(read: ReadBytes) -> np.random.Generator:
    """A `ByteGenerator`, by the type that devices state.

    They state numpy's generator because populations are drawn with it, and ask it for `integers`
    alone, which is offered here with the same arguments.
    """
    return cast(np.random.Generator, ByteGenerator(read))
