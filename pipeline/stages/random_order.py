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
    """Return the rows in a uniformly random order: one share after the other, to be read once.

    Every row draws one of `shares` shares, which follow each other, each permuted in memory. Their
    number must be so large that one fits in memory. A spill file buffers them. Draws only integers.

    Reference: Rao, *Generation of random permutations of given number of elements using random
    sampling numbers*, Sankhya A 23, 1961; Sandelius, *A simple randomization procedure*, 1962.
    """
    # NumPy sorts the narrowest numbers in linear time.
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
    """Yield the shares; each block holds bytes of every share, from `begins` on."""
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
    """Return the rows in a uniformly random order, in memory."""
    # NumPy swaps numbers faster than rows of one number.
    rows = values[:, 0] if values.shape[1] == 1 else values
    return generator.permutation(rows).reshape(values.shape)
