"""Random integers for a device, drawn from bytes in the same way in every programming language.

A browser device and a Python device must draw the same messages from the same bytes. numpy's
generators do not define how many bytes a draw consumes. These rules do:

* An integer from a range of n values consumes no bytes if n is 1. Otherwise it consumes k bytes,
  where k is the least of 1, 2, 4 and 8 with n <= 2^8k. The bytes form a little-endian integer v.
* If v is below the largest multiple of n that is at most 2^8k, the integer is the range's minimum
  plus v mod n. Otherwise v is discarded, and k more bytes are read. So all n values are equally
  likely.
* An array is filled element by element, in C order. Each element consumes all its bytes before the
  next one starts, for any dtype.
* Bytes are consumed in order, without leftovers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike

ReadBytes: TypeAlias = Callable[[int], bytes]
"""Source of a requested number of random bytes, such as `os.urandom`."""


class ByteGenerator:
    """The part of numpy's `Generator` that devices use, with draws by this module's rules.

    `read` returns cryptographic randomness; anything else is for tests only.

    >>> script = iter([bytes([255, 7]), bytes([3])])
    >>> ByteGenerator(lambda count: next(script)).integers(0, 5, 2).tolist()  # 255 is drawn again
    [2, 3]
    """

    def __init__(self, read: ReadBytes) -> None:
        self._read = read

    def bytes(self, length: int) -> bytes:
        """Return `length` random bytes; raise `ValueError` if the source returns more or fewer."""
        if length == 0:
            return b""
        read = self._read(length)
        if len(read) != length:
            raise ValueError(f"read {len(read)} random bytes; expected {length}")
        return read

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: int | tuple[int, ...] | None = None,
        dtype: DTypeLike = np.int64,
        endpoint: bool = False,
    ) -> Any:
        """Draw independent integers, each value of a range equally likely.

        Arguments and result are those of numpy's `Generator.integers`, with scalar bounds. Raises
        `ValueError` if the range is empty or exceeds the dtype.
        """
        least, end = (0, int(low)) if high is None else (int(low), int(high))
        values = end - least + endpoint
        kind = np.dtype(dtype)
        if values < 1:
            raise ValueError(f"range [{least}, {least + values}) is empty; expected low < high")
        limits = np.iinfo(kind)
        if not limits.min <= least <= least + values - 1 <= limits.max:
            raise ValueError(
                f"integers from {least} to {least + values - 1} do not fit into {kind}"
            )
        shape = () if size is None else size
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        steps = self._below(values, count)
        # Unsigned integers wrap around: the result equals the exact sum, which fits the dtype.
        offset = np.uint64(least % (1 << 64))
        drawn = (steps + offset).astype(kind, casting="unsafe").reshape(shape)
        return drawn[()] if size is None else drawn

    def _below(self, values: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        if values == 1:
            return np.zeros(count, np.uint64)
        width = next(width for width in (1, 2, 4, 8) if values <= 1 << 8 * width)
        largest = (1 << 8 * width) // values * values - 1
        taken = [np.zeros(0, np.uint64)]
        # Each element is the next number that is not rejected, so all can be read together.
        while count:
            numbers = np.frombuffer(self.bytes(count * width), f"<u{width}").astype(np.uint64)
            taken.append(numbers[numbers <= np.uint64(largest)])
            count -= len(taken[-1])
        drawn = np.concatenate(taken)
        return drawn if values == 1 << 64 else drawn % np.uint64(values)


def byte_randomness(read: ReadBytes) -> np.random.Generator:
    """Return a `ByteGenerator` that is typed as a numpy generator.

    Device methods take a numpy generator so that whole populations can be simulated, but a single
    device calls only the generator's `integers` method.
    """
    return cast(np.random.Generator, ByteGenerator(read))
