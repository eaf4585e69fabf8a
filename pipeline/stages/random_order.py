"""Permute a large multiset at random without loading it as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Steps, Yield
from dpstream.pipeline.stages.environment import OpenSpillFile
from dpstream.topics.messages import MessageArray


def in_random_order(
    blocks: Iterable[MessageArray],
    shares: int,
    open_spill_file: OpenSpillFile,
    generator: np.random.Generator,
) -> Steps[Iterator[MessageArray]]:
    """Return the rows in a uniformly random order, as an iterator over blocks.

    Every row is assigned to one of `shares` blocks at random, and each block is permuted in memory.
    A spill file buffers the blocks. Only integers are drawn.

    Reference: Rao, *Generation of random permutations of given number of elements using random
    sampling numbers*, Sankhya A 23, 1961; Sandelius, *A simple randomization procedure*, 1962.
    """
    # NumPy sorts integers of at most 16 bits in linear time.
    narrow = np.min_scalar_type(shares - 1)
    file, begins = open_spill_file(), []
    row_bytes = 0
    for block in blocks:
        drawn = generator.integers(0, shares, len(block), narrow)
        ordered = np.ascontiguousarray(block[np.argsort(drawn, kind="stable")])
        sizes = np.bincount(drawn, minlength=shares)
        row_bytes = block.dtype.itemsize * block.shape[1]
        begins.append(file.tell() + row_bytes * np.concatenate([[0], np.cumsum(sizes)]))
        file.write(ordered.data)
        form = block.dtype, block.shape[1]
        yield Yield()
    return _permuted(file, np.array(begins), form, generator)


def _permuted(
    file: BinaryIO,
    begins: NDArray[np.int64],
    form: tuple[np.dtype[np.unsignedinteger], int],
    generator: np.random.Generator,
) -> Iterator[MessageArray]:
    """Yield the permuted blocks; `begins` has the file offsets of their rows, per input block."""
    dtype, width = form
    with file:
        for first, end in zip(begins.T, begins.T[1:], strict=False):
            parts = []
            for start, stop in zip(first.tolist(), end.tolist(), strict=True):
                file.seek(start)
                parts.append(file.read(stop - start))
            yield permutation(
                np.frombuffer(bytearray().join(parts), dtype).reshape(-1, width), generator
            )


def permutation(values: MessageArray, generator: np.random.Generator) -> MessageArray:
    # NumPy permutes a 1-D array faster than an array with one column.
    rows = values[:, 0] if values.shape[1] == 1 else values
    return generator.permutation(rows).reshape(values.shape)
