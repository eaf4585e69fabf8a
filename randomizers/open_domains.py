"""Domains too large to list: integers of a fixed number of bits, and short strings.

Every value is encoded as an integer below 2^bits. Its item number is one more, so that 0 means no
item. Strings are encoded as their UTF-8 bytes, most significant first and padded with zero bytes at
the end. So strings with the same beginning have a common prefix, and item numbers sort like bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_BITS: Final = 61
MOST_BYTES: Final = 7
_BYTE: Final = 8


class OpenDomain(ABC):
    @property
    @abstractmethod
    def bits(self) -> int:
        """Number of bits; item numbers run from 1 to 2^bits."""

    @abstractmethod
    def numbers(self, values: Iterable[object]) -> NDArray[np.int64]:
        """Return each value's item number: int64, shape (values,); reject invalid values."""

    @abstractmethod
    def value(self, number: int) -> int | str | None:
        """Return the value with an item number, or None if no value has it."""


@dataclass(frozen=True, slots=True)
class WholeNumbers(OpenDomain):
    """Integers from 0 to 2^bits - 1; `width` is the number of bits.

    >>> domain = WholeNumbers(24)
    >>> domain.numbers([0, 5, "7"]).tolist(), domain.value(6)
    ([1, 6, 8], 5)
    """

    width: int

    def __post_init__(self) -> None:
        if type(self.width) is not int or not 1 <= self.width <= MOST_BITS:
            raise ValueError(f"'width' is {self.width!r}; expected 1 to {MOST_BITS} bits")

    @property
    def bits(self) -> int:
        return self.width

    def numbers(self, values: Iterable[object]) -> NDArray[np.int64]:
        return np.array([self._integer(value) + 1 for value in values], np.int64)

    def value(self, number: int) -> int:
        _check_number(number, self.bits)
        return number - 1

    def _integer(self, value: object) -> int:
        try:
            integer = int(value) if isinstance(value, str | int | np.integer) else -1
        except ValueError:
            integer = -1
        if not 0 <= integer < 1 << self.width or isinstance(value, bool):
            raise ValueError(
                f"value is {value!r}; expected an integer from 0 to 2^{self.width} - 1"
            )
        return integer


@dataclass(frozen=True, slots=True)
class ShortStrings(OpenDomain):
    """Strings of at most `most_bytes` bytes in UTF-8, without NUL characters.

    >>> domain = ShortStrings(3)
    >>> [domain.value(int(number)) for number in domain.numbers(["the", "is", ""])]
    ['the', 'is', '']
    """

    most_bytes: int

    def __post_init__(self) -> None:
        if type(self.most_bytes) is not int or not 1 <= self.most_bytes <= MOST_BYTES:
            raise ValueError(f"'most_bytes' is {self.most_bytes!r}; expected 1 to {MOST_BYTES}")

    @property
    def bits(self) -> int:
        return _BYTE * self.most_bytes

    def numbers(self, values: Iterable[object]) -> NDArray[np.int64]:
        return np.array(
            [
                int.from_bytes(self._bytes(value).ljust(self.most_bytes, b"\0")) + 1
                for value in values
            ],
            np.int64,
        )

    def value(self, number: int) -> str | None:
        _check_number(number, self.bits)
        text = (number - 1).to_bytes(self.most_bytes).rstrip(b"\0")
        try:
            return None if b"\0" in text else text.decode()
        except UnicodeDecodeError:
            return None

    def _bytes(self, value: object) -> bytes:
        try:
            text = value.encode() if isinstance(value, str) else None
        except UnicodeEncodeError:
            text = None
        if text is None or len(text) > self.most_bytes or b"\0" in text:
            raise ValueError(
                f"value is {value!r}; expected a string of at most {self.most_bytes} UTF-8 bytes, "
                "without NUL characters"
            )
        return text


def _check_number(number: int, bits: int) -> None:
    if not 1 <= number <= 1 << bits:
        raise ValueError(f"item number is {number}; expected 1 to 2^{bits}")
