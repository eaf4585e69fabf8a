"""Points on a grid: one cell for every combination of the coordinates' cells.

A box is a product of ranges, one per axis. If each range is a signed sum of a few cells of its
axis, the box is a signed sum of all combinations of these cells.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Section 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes import kept_nodes, levels
from dpstream.randomizers.cell_codes.kept_nodes import NONE, KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels, check_items

KIND = "grid"
AxisCode = Levels | KeptNodes


@dataclass(frozen=True, slots=True)
class Grid:
    """A code for points, composed of one code per coordinate.

    Points are items 1 to D. Items and cells are numbered with the last coordinate varying fastest.

    >>> grid = Grid((Levels(2, (2,)), KeptNodes(4)))
    >>> grid.cells, grid.messages, grid.shared
    (12, 6, 1)
    >>> grid.encode(grid.items(np.array([[1, 2]]))).tolist()  # cells 0, 2 times cells 2, 3
    [[2, 3, -1, 10, 11, -1]]
    """

    axes: tuple[AxisCode, ...]

    def __post_init__(self) -> None:
        if not self.axes:
            raise ValueError("'axes' is empty; expected at least one axis")

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @property
    def cells(self) -> int:
        return math.prod(axis.cells for axis in self.axes)

    @property
    def messages(self) -> int:
        return math.prod(axis.messages for axis in self.axes)

    @property
    def shared(self) -> int:
        return math.prod(axis.shared for axis in self.axes)

    def items(self, points: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the item of each point; `points` has shape (points, axes), coordinates from 0."""
        return np.asarray(np.ravel_multi_index(tuple(points.T), self.sizes) + 1, np.int64)

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        check_items(items, self.size)
        cells = np.zeros((len(items), 1), np.int64)
        coordinates = np.unravel_index(items - 1, self.sizes)
        for axis, coordinate in zip(self.axes, coordinates, strict=True):
            own = axis.encode(coordinate.astype(np.int64) + 1)[:, None, :]
            so_far = cells[:, :, None]
            both = np.where((so_far < 0) | (own < 0), NONE, so_far * axis.cells + own)
            cells = both.reshape(len(items), math.prod(both.shape[1:]))
        return cells

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "axes": [axis.to_json() for axis in self.axes]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        if body["kind"] != KIND:
            raise ValueError(f"'kind' is {body['kind']!r}; expected {KIND!r}")
        kinds: dict[str, type[AxisCode]] = {levels.KIND: Levels, kept_nodes.KIND: KeptNodes}
        return cls(tuple(kinds[axis["kind"]].from_json(axis) for axis in body["axes"]))
