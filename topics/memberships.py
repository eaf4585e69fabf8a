"""Compact encoding of the producers included in a window.

The first byte states the format; the shorter one is used, or format 0 if both have the same length:

* format 0: a bitmap, one bit per producer in the order of registration, lowest bit first;
* format 1: the number of missing producers, and for each of them the number of included producers
  after the previous missing one.

Numbers have seven bits per byte, the lowest first; the highest bit is set if more bytes follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpstream.topics.frames import CodecError

T = TypeVar("T", bool, int)


class NumberRow(Sequence[T], Generic[T]):
    """An immutable sequence, stored as an array; equal to every sequence of the same values.

    For ten thousand producers, a tuple takes forty times as long to create, and ten times the
    memory.

    >>> row = NumberRow(np.array([3, 1, 2], np.uint32))
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
        if isinstance(other, NumberRow):
            return np.array_equal(self._array, other._array)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self._array.astype(self._array.dtype if dtype is None else dtype, copy=bool(copy))


_BITMAP, _MISSING = 0, 1
_NUMBER_BYTES = 5


def encode_number(number: int) -> bytes:
    """Encode a number from 0 to 2^35 - 1 in one to five bytes.

    >>> encode_number(5).hex(), encode_number(300).hex()
    ('05', 'ac02')
    """
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def decode_number(data: bytes, start: int) -> tuple[int, int]:
    """Return the number at `start` in its shortest encoding, and the position after it."""
    number = 0
    for place, byte in enumerate(data[start : start + _NUMBER_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if byte == 0 and place:
                raise CodecError(f"the number at byte {start} is not in its shortest encoding")
            return number, start + place + 1
    raise CodecError(f"the number at byte {start} is longer than {_NUMBER_BYTES} bytes")


def encode_membership(inside: NDArray[np.bool_]) -> bytes:
    bitmap = np.packbits(inside, bitorder="little").tobytes()
    missing = np.flatnonzero(~inside)
    if len(missing) >= len(bitmap):
        return bytes([_BITMAP]) + bitmap
    between = np.diff(missing, prepend=-1) - 1
    named = b"".join(map(encode_number, [len(missing), *between.tolist()]))
    return bytes([_MISSING]) + named if len(named) < len(bitmap) else bytes([_BITMAP]) + bitmap


def decode_membership(payload: bytes, producers: int) -> tuple[NDArray[np.bool_], int]:
    """Return the included producers and the position after the membership."""
    if not payload:
        raise CodecError("payload is empty; expected a list of included producers")
    if payload[0] == _BITMAP:
        end = 1 + (producers + 7) // 8
        if end > len(payload):
            raise CodecError(
                f"payload has {len(payload)} bytes; the bitmap of {producers} producers requires "
                f"{end}"
            )
        bits = np.unpackbits(np.frombuffer(payload[1:end], np.uint8), bitorder="little")
        inside = bits[:producers].view(np.bool_)
    elif payload[0] == _MISSING:
        inside, end = _without_missing(payload, producers)
    else:
        raise CodecError(f"membership has unknown format {payload[0]}; expected 0 or 1")
    if encode_membership(inside) != payload[:end]:
        raise CodecError("the included producers are not in their shortest encoding")
    return inside, end


def _without_missing(payload: bytes, producers: int) -> tuple[NDArray[np.bool_], int]:
    inside = np.ones(producers, np.bool_)
    count, end = decode_number(payload, 1)
    if count > producers:
        raise CodecError(f"{count} producers are missing; expected at most {producers}")
    index = -1
    for _ in range(count):
        between, end = decode_number(payload, end)
        index += 1 + between
        if index >= producers:
            raise CodecError(
                f"missing producers include number {index}; the job has only {producers} producers"
            )
        inside[index] = False
    return inside, end
