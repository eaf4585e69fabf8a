"""Rows of many values that are read as tuples are, and held as arrays.

Of ten thousand producers a tuple of populations takes forty times as long to make, and ten times as
much memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T", bool, int)


class Row(Sequence[T], Generic[T]):
    """A row that nobody changes; equal to every sequence of the same values.

    Args:
        array: of one dimension; nobody writes to it any more.

    >>> row = Row(np.array([3, 1, 2], np.uint32))
    >>> row == (3, 1, 2), row[1], row[1:], sum(row)
    (True, 1, (1, 2), 6)
    """

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array.view()
        self._array.flags.writeable = False

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[T]:
        values: list[T] = self._array.tolist()
        return iter(values)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        found = self._array[place].tolist()
        return tuple(found) if isinstance(place, slice) else found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return np.array_equal(self._array, other._array)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self._array.astype(self._array.dtype if dtype is None else dtype, copy=bool(copy))
