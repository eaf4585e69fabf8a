"""Interface and parsing of all cell codes."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes import grid, hashed_rows, kept_nodes, levels, prefixes


class CellCode(typing.Protocol):
    """Mapping from items (1 to `size`) to cells; a message is a cell's number, counted from 0."""

    @property
    def size(self) -> int: ...

    @property
    def cells(self) -> int: ...

    @property
    def messages(self) -> int:
        """Maximum number of cells per item."""

    @property
    def shared(self) -> int:
        """Number of cells that all items raise."""

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each item's distinct cells, shape (items, messages); -1 for missing cells."""

    def to_json(self) -> dict[str, Any]: ...


_KINDS: Final[Mapping[str, Any]] = {
    hashed_rows.KIND: hashed_rows.HashedRows,
    levels.KIND: levels.Levels,
    kept_nodes.KIND: kept_nodes.KeptNodes,
    grid.KIND: grid.Grid,
    prefixes.PrefixCells.kind: prefixes.PrefixCells,
}


def code_from_json(body: Mapping[str, Any]) -> CellCode:
    """Parse the JSON of a code; raise `KeyError`, `TypeError` or `ValueError` if malformed."""
    if body["kind"] not in _KINDS:
        raise ValueError(f"'kind' is {body['kind']!r}; expected one of: {', '.join(_KINDS)}")
    code: CellCode = _KINDS[body["kind"]].from_json(body)
    return code
