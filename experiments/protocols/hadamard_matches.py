"""Count the tuples of columns that lie in each item's set, in two ways.

A tuple lies in H_r^tau (of the protocol `hadamard`) if popcount(r & c) is even for each of its
columns c. One method tests this for each item. The other solves tau linear equations over GF(2) for
the bits of r. The solutions (about B 2^-tau rows) are sums of subsets of a basis of the null space.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Batch sizes, in tuples and in solutions of their equations.
_TUPLES, _SOLUTIONS = 1 << 13, 1 << 20


def matches(
    tuples: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None, items: int
) -> NDArray[np.int64]:
    """Count the tuples in the set of each row from 0 to `items`, by the faster of two methods.

    `tuples` are columns, unsigned, shape (n, tau); `counts`, unsigned, shape (n,), are
    multiplicities, None for 1 each. All tuples lie in the set of row 0, whose count is first.

    >>> matches(np.array([[1, 3], [2, 2], [0, 0]], np.uint8), None, items=4).tolist()
    [3, 2, 1, 1, 3]
    """
    bits = items.bit_length()
    if items > 3 * bits:
        # Rows have just enough bits for the items: higher bits of columns do not matter.
        return matches_by_equations(tuples, counts, bits)[: items + 1]
    return matches_by_item(tuples, counts, np.arange(items + 1))


def matches_by_item(
    tuples: NDArray[np.unsignedinteger],
    counts: NDArray[np.unsignedinteger] | None,
    rows: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Count the tuples in the set of each of `rows`, shape (m,), by comparing all pairs."""
    found = np.zeros(len(rows), np.int64)
    for start in range(0, len(tuples), _TUPLES):
        columns = tuples[start : start + _TUPLES].T.astype(np.uint32)
        times = None if counts is None else counts[start : start + _TUPLES].astype(np.int64)
        for position, row in enumerate(rows.tolist()):
            outside = (np.bitwise_count(columns & np.uint32(row)) & 1).any(axis=0)
            found[position] += (
                len(outside) - np.count_nonzero(outside) if times is None else times[~outside].sum()
            )
    return found


def matches_by_equations(
    tuples: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None, bits: int
) -> NDArray[np.int64]:
    """Count the tuples in the set of each row of `bits` bits, by solving each tuple's equations.

    Higher bits of a column are ignored. The result is int64, shape (2^bits,).
    """
    found = np.zeros(1 << bits, np.int64)
    for start in range(0, len(tuples), _TUPLES):
        basis = kernels(tuples[start : start + _TUPLES], bits)
        times = None if counts is None else counts[start : start + _TUPLES]
        dimensions = np.count_nonzero(basis, axis=0)
        for dimension in np.unique(dimensions).tolist():
            (alike,) = np.nonzero(dimensions == dimension)
            for part in np.array_split(alike, -(-(len(alike) << dimension) // _SOLUTIONS)):
                solutions = spans(basis[:dimension, part])
                if times is None:
                    found += np.bincount(solutions.ravel(), minlength=len(found))
                else:
                    # Integers below 2^53: sums are exact.
                    weights = np.broadcast_to(times[part].astype(np.float64), solutions.shape)
                    found += np.bincount(solutions.ravel(), weights.ravel(), len(found)).astype(
                        np.int64
                    )
    return found


def kernels(tuples: NDArray[np.unsignedinteger], bits: int) -> NDArray[np.uint32]:
    """Compute, for each tuple, a basis of the rows whose sets contain it.

    The initial basis consists of the unit vectors. A column halves the span if popcount(r & column)
    is odd for some basis vectors r: one of them is added to the others and removed. `tuples` have
    shape (n, tau); the result is uint32, shape (bits, n), one zero-padded basis per column.
    """
    units = np.uint32(1) << np.arange(bits, dtype=np.uint32)
    basis = np.repeat(units[:, None], len(tuples), axis=1)
    for column in tuples.T.astype(np.uint32):
        outside = (np.bitwise_count(basis & column) & 1).astype(np.uint32)
        # Add the largest vector with an odd popcount, which is unique, and so remove it.
        basis ^= outside * (outside * basis).max(axis=0)
    return np.sort(basis, axis=0)[::-1]


def spans(basis: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the sums of all subsets of a basis over GF(2), uint32, shape (2^dimension, n).

    `basis` has shape (dimension, n), with a basis in each column.
    """
    sums = np.zeros((1, basis.shape[1]), np.uint32)
    for vector in basis:
        sums = np.concatenate([sums, sums ^ vector])
    return sums
