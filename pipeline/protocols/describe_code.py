"""The cells of a code as people speak of them: rows of buckets, a tree, a histogram."""

from __future__ import annotations

from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells


def describe_code(code: CellCode) -> str:
    """What is counted.

    >>> describe_code(HashedRows(10_000, 5, 8192, seed="rows"))
    '5 rows of 8,192 hashed buckets'
    >>> describe_code(Grid((Levels(64, (8, 8)), Levels(64, (64,)))))
    'a tree of 64 values, branching 8 x 8, times a tree of 64 values, branching 64'
    """
    match code:
        case HashedRows() if code.direct:
            return f"a histogram, with a cell for each of {code.size:,} items"
        case HashedRows():
            rows = "1 row" if code.rows == 1 else f"{code.rows:,} rows"
            return f"{rows} of {code.buckets:,} hashed buckets"
        case Levels():
            return (
                f"a tree of {code.size:,} values, branching {' x '.join(map(str, code.branching))}"
            )
        case KeptNodes():
            return f"the root and all left children of a binary tree of {code.size:,} values"
        case Grid():
            return ", times ".join(map(describe_code, code.axes))
        case PrefixCells():
            levels = (
                f"{level.length} bits in {level.buckets:,}{'' if level.direct else ' hashed'} cells"
                for level in code.levels
            )
            return f"prefixes of {', '.join(levels)}"
        case _:
            return f"{code.cells:,} cells"
