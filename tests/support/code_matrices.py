"""Cell codes as matrices, for dense linear algebra and for checks of every pair of items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.grid import AxisCode, Grid


def code_matrix(code: AxisCode | Grid) -> NDArray[np.float64]:
    """Return the number of times each item raises each cell, shape (cells, items)."""
    matrix = np.zeros((code.cells, code.size))
    encoded = code.encode(np.arange(1, code.size + 1))
    items, columns = np.nonzero(encoded >= 0)
    np.add.at(matrix, (encoded[items, columns], items), 1.0)
    return matrix


def raised_cells(code: AxisCode | Grid) -> list[frozenset[int]]:
    return [frozenset(np.flatnonzero(column).tolist()) for column in code_matrix(code).T]
