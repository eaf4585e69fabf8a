"""Verify Ed25519 signatures (RFC 8032) in pure Python.

Verification happens once per deployment and uses only public data, so its duration reveals no
secret, and there are no private keys. Points are in extended coordinates (X, Y, Z, T) with
x = X/Z, y = Y/Z and x y = T/Z.
"""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

_P: Final = 2**255 - 19
_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT: Final = pow(2, (_P - 1) // 4, _P)
_Point: TypeAlias = tuple[int, int, int, int]
_ZERO: Final[_Point] = (0, 1, 1, 0)
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def is_good(signature: bytes, message: bytes, public_key: bytes) -> bool:
    """Return whether a signature of a message is valid for a public key.

    Args:
        signature: 64 bytes; any other length is invalid.
        message: Any bytes.
        public_key: 32 bytes. No signature is valid for an invalid key, nor for a key of small
            order, whose signatures would be valid for any message.
    """
    if len(signature) != SIGNATURE_BYTES or len(public_key) != KEY_BYTES:
        return False
    key, commitment = _point(public_key), _point(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or commitment is None or scalar >= _ORDER or _equal(_times(8, key), _ZERO):
        return False
    digest = hashlib.sha512(signature[:32] + public_key + message).digest()
    challenge = int.from_bytes(digest, "little") % _ORDER
    return _equal(_times(scalar, _BASE), _sum(commitment, _times(challenge, key)))


def _sum(one: _Point, other: _Point) -> _Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: _Point) -> _Point:
    total = _ZERO
    while scalar:
        if scalar & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        scalar >>= 1
    return total


def _equal(one: _Point, other: _Point) -> bool:
    return (
        one[0] * other[2] % _P == other[0] * one[2] % _P
        and one[1] * other[2] % _P == other[1] * one[2] % _P
    )


def _point(data: bytes) -> _Point | None:
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _base_point() -> _Point:
    point = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE: Final = _base_point()
