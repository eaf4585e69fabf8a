"""All cell codes, and reading them back."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes import grid, hashed_rows, kept_nodes, levels, prefixes


class CellCode(typing.Protocol):
    """Which cells an item raises."""

    @property
    def size(self) -> int:
        """Number of items."""
        ...

    @property
    def cells(self) -> int:
        """How many there are; a report is the number of one, from 0 on."""
        ...

    @property
    def messages(self) -> int:
        """How many an item raises at most."""
        ...

    @property
    def shared(self) -> int:
        """How many of them are the same for all items."""
        ...

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cells of items, shape (items, messages), all different; -1 where there is none."""
        ...

    def to_json(self) -> dict[str, Any]:
        """JSON values, with the key ``kind``."""
        ...


_KINDS: Final[Mapping[str, Any]] = {
    hashed_rows.KIND: hashed_rows.HashedRows,
    levels.KIND: levels.Levels,
    kept_nodes.KIND: kept_nodes.KeptNodes,
    grid.KIND: grid.Grid,
    prefixes.PrefixCells.kind: prefixes.PrefixCells,
}


def code_from_json(body: Mapping[str, Any]) -> CellCode:
    """Read `CellCode.to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    if body["kind"] not in _KINDS:
        raise ValueError(f"a code of kind {body['kind']!r}, known are {', '.join(_KINDS)}")
    code: CellCode = _KINDS[body["kind"]].from_json(body)
    return code
