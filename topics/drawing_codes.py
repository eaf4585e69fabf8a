"""Drawings of many producers in a kilobyte, for whoever knows nearly all of them.

A window that is written in parts is of one drawing of each producer, eight random bytes
(`topics.batches.batch_id`), and whoever writes a part has mostly found one of each. So the decision
need not name them all. It holds `CHECKS` check words of a Reed-Solomon code over the row of
drawings, in the order of those who are in, and a digest of the row: whoever knows the row but for a
few drawings has the rest from the check words, exactly, and the digest says whether that is so. Of
those it knows that it does not know, as many as there are check words may be missing; a drawing
that it takes for another costs two.

A drawing is four symbols of 16 bits, each of a code of its own. Symbol number i of a row stands at
a^i in the field of 2^16 elements, where a is a root of x^16 + x^12 + x^3 + x + 1, and check word k
is the sum of all symbols, each times the k-th power of its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.batches import DRAWING_BYTES
from topics.frames import CodecError

CHECKS: Final = 128
"""Check words of a row of drawings, each as long as a drawing."""
DIGEST_BYTES: Final = 16
CODE_BYTES: Final = CHECKS * DRAWING_BYTES + DIGEST_BYTES
"""Of a code as it is written."""

_FIELD: Final = 0x1100B
_ORDER: Final = (1 << 16) - 1
"""Elements that are not 0, and places that a row can have."""
_LANES: Final = DRAWING_BYTES // 2

Symbols: TypeAlias = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class DrawingCode:
    """What a decision says of the drawings of more than `CHECKS` producers.

    Attributes:
        checks: the check words, one after the other.
        digest: the first bytes of SHA-256 over the row.

    Raises:
        CodecError: a field has another length.
    """

    checks: bytes
    digest: bytes

    def __post_init__(self) -> None:
        if (len(self.checks), len(self.digest)) != (CHECKS * DRAWING_BYTES, DIGEST_BYTES):
            raise CodecError(
                f"check words of {len(self.checks)} bytes and a digest of {len(self.digest)}, "
                f"must be {CHECKS * DRAWING_BYTES} and {DIGEST_BYTES}"
            )

    @classmethod
    def of(cls, drawings: Sequence[bytes]) -> DrawingCode:
        """The code of a row of drawings, each of 8 bytes; at most 65,535."""
        checks = _checks(_symbols(drawings)).astype("<u2").tobytes()
        return cls(checks, _digest(drawings))

    @classmethod
    def from_bytes(cls, data: bytes) -> DrawingCode:
        """Read it back; `CodecError` if it has another length."""
        return cls(data[: CHECKS * DRAWING_BYTES], data[CHECKS * DRAWING_BYTES :])

    def to_bytes(self) -> bytes:
        """As it is written: `CODE_BYTES`."""
        return self.checks + self.digest

    def is_of(self, drawings: Sequence[bytes]) -> bool:
        """Whether a row of drawings is the one that was decided."""
        return _digest(drawings) == self.digest

    def recover(
        self, drawings: Sequence[bytes], unknown: Collection[int]
    ) -> tuple[bytes, ...] | None:
        """The row that was decided; None where too little of it is known.

        Args:
            drawings: of each producer that is in, as far as it is known: at most half as many may
                be wrong as there are check words beyond those unknown.
            unknown: places of those that are not, whatever stands there.
        """
        if len(unknown) > CHECKS:
            return None
        row = _symbols(drawings)
        row[list(unknown)] = 0
        checks = np.frombuffer(self.checks, "<u2").reshape(CHECKS, _LANES)
        syndromes = checks ^ _checks(row)
        for lane in range(_LANES):
            errors = _errors(syndromes[:, lane], sorted(unknown), len(row))
            if errors is None:
                return None
            row[:, lane] ^= errors
        written = row.astype("<u2").tobytes()
        found = tuple(
            written[start : start + DRAWING_BYTES]
            for start in range(0, len(written), DRAWING_BYTES)
        )
        return found if self.is_of(found) else None


def _digest(drawings: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join(drawings)).digest()[:DIGEST_BYTES]


def _symbols(drawings: Sequence[bytes]) -> Symbols:
    """A row for each drawing."""
    if len(drawings) > _ORDER:
        raise CodecError(f"{len(drawings)} drawings, a code has at most {_ORDER} places")
    return np.frombuffer(b"".join(drawings), "<u2").reshape(-1, _LANES).astype(np.uint16)


@cache
def _tables() -> tuple[Symbols, NDArray[np.int32]]:
    """The powers of a, and of every element which power it is.

    0 has a number so large that with any other it is one of the powers that are 0 here.
    """
    powers, logarithms = np.zeros(4 * _ORDER + 1, np.uint16), np.zeros(1 << 16, np.int32)
    element = 1
    for power in range(_ORDER):
        powers[[power, power + _ORDER]] = element
        logarithms[element] = power
        element <<= 1
        if element >> 16:
            element ^= _FIELD
    logarithms[0] = 2 * _ORDER
    return powers, logarithms


def _product(one: Symbols, other: Symbols | np.uint16) -> Symbols:
    powers, logarithms = _tables()
    product: Symbols = powers[logarithms[one] + logarithms[other]]
    return product


def _inverse(elements: Symbols) -> Symbols:
    """Of elements that are not 0."""
    powers, logarithms = _tables()
    inverse: Symbols = powers[_ORDER - logarithms[elements]]
    return inverse


def _values(polynomial: Symbols, logarithms_of_places: NDArray[np.int64]) -> Symbols:
    """A polynomial, whose lowest coefficient is the first, at powers of a."""
    powers, logarithms = _tables()
    values = np.zeros(len(logarithms_of_places), np.uint16)
    shift = np.zeros_like(logarithms_of_places)
    for coefficient in logarithms[polynomial].tolist():
        values ^= powers[coefficient + shift]
        shift = (shift + logarithms_of_places) % _ORDER
    return values


def _checks(row: Symbols) -> Symbols:
    """The check words of a row, one a row."""
    powers, logarithms = _tables()
    numbers = logarithms[row]
    places = np.arange(len(row), dtype=np.int32)[:, None]
    shift = np.zeros_like(places)
    checks = np.zeros((CHECKS, _LANES), np.uint16)
    for number in range(CHECKS):
        np.bitwise_xor.reduce(powers[numbers + shift], axis=0, out=checks[number])
        shift += places
        shift -= _ORDER * (shift >= _ORDER)
    return checks


def _errors(syndromes: Symbols, unknown: Sequence[int], places: int) -> Symbols | None:
    """What is to be added to a row so that its check words are those wanted; None: not known.

    Args:
        syndromes: by how much they differ.
        unknown: places that are to be found whatever stands there.
        places: of the row.
    """
    errors = np.zeros(places, np.uint16)
    if not syndromes.any():
        return errors
    located = _locator(syndromes, unknown)
    if located is None:
        return None
    locator, degree = located
    powers, _ = _tables()
    inverses = -np.arange(places, dtype=np.int64) % _ORDER
    found = np.flatnonzero(_values(locator, inverses) == 0)
    if len(found) != degree:
        return None
    # Forney's formula, with the first power of the places that is summed over being 0.
    evaluator = np.zeros(CHECKS, np.uint16)
    for power, coefficient in enumerate(locator):
        evaluator[power:] ^= _product(syndromes[: CHECKS - power], coefficient)
    derivative = locator[1:].copy()
    derivative[1::2] = 0
    slopes = _values(derivative, inverses[found])
    above = _product(powers[found], _values(evaluator, inverses[found]))
    errors[found] = _product(above, _inverse(slopes))
    return errors


def _locator(syndromes: Symbols, unknown: Sequence[int]) -> tuple[Symbols, int] | None:
    """The polynomial whose roots are the inverses of all places that are wrong, and its degree.

    Berlekamp and Massey's algorithm, begun with the places that are unknown. None: there are too
    many.
    """
    powers, _ = _tables()
    locator = np.zeros(CHECKS + 1, np.uint16)
    locator[0] = 1
    for place in unknown:
        locator[1:] ^= _product(locator[:-1], powers[place])
    before, degree, begun = locator.copy(), len(unknown), len(unknown)
    for number in range(begun, CHECKS):
        terms = _product(locator[: number + 1], syndromes[number::-1])
        discrepancy = np.bitwise_xor.reduce(terms)
        before = np.concatenate([np.zeros(1, np.uint16), before[:-1]])
        if not discrepancy:
            continue
        improved = locator ^ _product(before, discrepancy)
        if 2 * degree <= number + begun:
            before = _product(locator, _inverse(np.asarray(discrepancy)))
            degree = number + 1 - degree + begun
        locator = improved
    if 2 * degree - begun > CHECKS or np.flatnonzero(locator)[-1] != degree:
        return None
    return locator[: degree + 1], degree
