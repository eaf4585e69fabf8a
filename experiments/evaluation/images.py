"""Images as histograms: a pixel's value is the number of users at its location."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.rows import BadRows, InputError
from dpstream.pipeline.values.value_domains import ValueDomain

_HEADER = re.compile(rb"P5\s+(\d+)\s+(\d+)\s+255\s")


class NumberedUsers(Sequence[str]):
    """Users numbered from 1; names of many millions of users would exhaust memory."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [str(number + 1) for number in range(self._count)[index]]
        return str(range(self._count)[index] + 1)


def is_image(contents: bytes) -> bool:
    return contents.startswith(b"P5")


def pixels(contents: bytes) -> NDArray[np.uint8]:
    """Return the image, shape (height, width), or raise `ValueError` if it is not an 8-bit PGM."""
    header = _HEADER.match(contents)
    if header is None:
        raise ValueError("expected a PGM file (P5) with 8 bits per pixel")
    width, height = map(int, header.groups())
    values = np.frombuffer(contents[header.end() :], np.uint8)
    if len(values) != width * height:
        raise ValueError(f"got {len(values):,} pixels; expected {width} x {height}")
    return values.reshape(height, width)


def image_log(contents: bytes, domain: ValueDomain, name: str) -> ItemLog:
    """Return the users of one epoch, sorted by the location of their pixel.

    The domain's values are sets of points in a plane, ``row;column``. Raises `InputError` if the
    image is invalid or has pixels outside the domain. `name` is the file name shown in messages.
    """
    try:
        image = pixels(contents)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    places = np.argwhere(image)
    values, problems = domain.parse([f"{row};{column}" for row, column in places.tolist()])
    if problems or domain.slots is None:
        wrong = next(iter(problems.values()), "the job does not count sets of points")
        raise InputError(f"{name}: {wrong}")
    held = np.repeat(values.astype(np.int64), image[image > 0])
    return ItemLog(
        users=NumberedUsers(len(held)),
        epochs=np.ones(len(held), np.int32),
        user_indices=np.arange(len(held), dtype=np.int32),
        values=held,
        slots=domain.slots,
        last_epoch=1,
        bad_rows=BadRows(name),
    )
