"""The fast Walsh-Hadamard transform."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def walsh_hadamard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply by the Sylvester-Hadamard matrix, along the last axis; B log2 B additions.

    >>> walsh_hadamard(np.array([1.0, 0.0, 0.0, 2.0]))
    array([ 3., -1., -1.,  3.])

    Args:
        values: float64, shape (..., B), B a power of two.

    Returns:
        the same shape: entry z is the sum over r of (-1)^popcount(r & z) times entry r.
    """
    size = values.shape[-1]
    result, spare = np.array(values, np.float64), np.empty(values.shape, np.float64)
    half = 1
    while half < size:
        # Neighbouring blocks of `half` entries become their sum and their difference.
        before = result.reshape(*values.shape[:-1], -1, 2, half)
        after = spare.reshape(before.shape)
        np.add(before[..., 0, :], before[..., 1, :], out=after[..., 0, :])
        np.subtract(before[..., 0, :], before[..., 1, :], out=after[..., 1, :])
        result, spare = spare, result
        half *= 2
    return result
