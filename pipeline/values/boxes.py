"""Ranges of values, and boxes of points, in queries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.values.times import shown


class QueryError(DpstreamError, ValueError):
    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class Box:
    """Values or points in [starts, ends) along each axis, from 0; a range if there is one axis."""

    name: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]


def two_ends(text: str, option: str) -> tuple[str, str]:
    low, colon, high = text.partition(":")
    if not colon:
        raise QueryError(
            f"{option}: {shown(text)} is not a range; expected LOW:HIGH, such as 10:20"
        )
    return low.strip(), high.strip()


def whole_range(text: str, size: int, option: str) -> Box:
    """Parse a range of integers in [0, size), ends included; by default, from 0 to `size` - 1."""
    two_ends(text, option)
    box = grid_box(text, (size,), option)
    return replace(box, name=f"{box.starts[0]} to {box.ends[0] - 1}")


def grid_box(text: str, grid: tuple[int, ...], option: str) -> Box:
    """Parse a box of points, ``A1:B1,A2:B2``, ends included; omitted ends cover the grid.

    >>> grid_box("0:9,32:", (64, 64), "--box")
    Box(name='0:9,32:', starts=(0, 32), ends=(10, 64))
    """
    sides = text.split(",")
    if len(sides) != len(grid):
        sizes = " x ".join(map(str, grid))
        count = f"{len(sides)} range{'' if len(sides) == 1 else 's'}"
        raise QueryError(
            f"{option}: {shown(text)} has {count}; expected {len(grid)} for the grid {sizes}: "
            "A:B for each axis, separated by commas"
        )
    starts, ends = [], []
    for side, size in zip(sides, grid, strict=True):
        low, colon, high = (part.strip() for part in side.partition(":"))
        if not low and not colon:
            raise QueryError(f"{option}: {shown(text)} has an empty range; use ':' for a full axis")
        first = coordinate(low or "0", size, option)
        last = coordinate(high or str(size - 1), size, option) if colon else first
        if first > last:
            raise empty(side, option)
        starts.append(first)
        ends.append(last + 1)
    return Box(text, tuple(starts), tuple(ends))


def coordinate(text: str, size: int, option: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise QueryError(f"{option}: {shown(text)} is not an integer") from None
    if not 0 <= number < size:
        raise QueryError(f"{option}: {number} is out of range; expected 0 to {size - 1:,}")
    return number


def finite(text: str, option: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise QueryError(f"{option}: {shown(text)} is not a number")
    return number


def empty(text: str, option: str) -> QueryError:
    return QueryError(f"{option}: range {shown(text)} is empty; expected the lower end first")
