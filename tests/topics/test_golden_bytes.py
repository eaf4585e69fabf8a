"""Test that record formats are pinned: golden bytes decode to the same records and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.records import DeadLetter, Deregistration, Discard, Drain, Reason, Registration

# Magic, version, kind and header length, then header fields of the type, payload length and
# checksum, then the payload.
_IDENTITY = "101112131415161718191a1b1c1d1e1f 202122232425262728292a2b2c2d2e2f"
_GOLDEN = {
    "plain batch": f"""
        64707374 01 01 6800 {_IDENTITY}
        303132333435363738393a3b3c3d3e3f 404142434445464748494a4b4c4d4e4f 0700000000000000
        00 01 0100 03000000 0300000000000000
        03000000 b1fb1dac
        01 03 01""",
    "counted batch": f"""
        64707374 01 01 6800 {_IDENTITY}
        303132333435363738393a3b3c3d3e3f 404142434445464748494a4b4c4d4e4f 0700000000000000
        01 02 0200 03000000 0500000001000000
        18000000 fd4bdf22
        05000000 01000000 ffffffff 0100 0102 0100 0203 0200 0000""",
    "punctuation": f"""
        64707374 01 02 6400 {_IDENTITY}
        404142434445464748494a4b4c4d4e4f 0700000000000000
        8403000000000000 e803000000000000 02000000 3031323334353637
        00000000 bdad7d85""",
    "chunk": f"""
        64707374 01 04 6800 {_IDENTITY}
        0700000000000000 0b00000000000000 505152535455565758595a5b5c5d5e5f 01000000 03000000
        00 04 0100 02000000 0200000000000000
        08000000 9799e7b0
        ffffffff 05000000""",
    "chunk of an instance": f"""
        64707374 02 04 6c00 {_IDENTITY}
        0700000000000000 0b00000000000000 505152535455565758595a5b5c5d5e5f 01000000 03000000
        02000000 00 04 0100 02000000 0200000000000000
        08000000 b0604746
        ffffffff 05000000""",
    "manifest of an instance": f"""
        64707374 02 03 7400 {_IDENTITY}
        0700000000000000 6400000000000000 7800000000000000 0200000000000000
        1900000000000000 5a00000000000000 0068e5cf8b010000 01000000 03000000 02000000
        19000000 604ab701
        05 0a000000 14000000 3031323334353637 38393a3b3c3d3e3f""",
    "manifest": f"""
        64707374 01 03 7000 {_IDENTITY}
        0700000000000000 6400000000000000 7800000000000000 0200000000000000
        1900000000000000 5e03020100000000 0068e5cf8b010000 02000000 0a000000
        0e000000 ba15a805
        05 02 0a000000 14000000 04030201""",
    "partial": f"""
        64707374 01 05 5800 {_IDENTITY}
        0700000000000000 0b00000000000000 505152535455565758595a5b5c5d5e5f 00000000 02000000
        05000000 9ecc7ca6
        7374617465""",
    "loose batch": f"""
        64707374 01 07 4800 {_IDENTITY}
        0700000000000000 02000000 0d000000 0000000000000000
        1a000000 6ba13b63
        0001020304050607 08090a0b0c 1b1c1d1e1f202122 2324252627""",
    "sealed loose batch": f"""
        64707374 01 07 4800 {_IDENTITY}
        0700000000000000 02000000 1b000000 3031323334353637
        36000000 4af3ee92
        0001020304050607 08090a0b0c0d0e0f1011121314151617 18191a
        1b1c1d1e1f202122 232425262728292a2b2c2d2e2f303132 333435""",
    "enrollments": f"""
        64707374 01 08 3800 {_IDENTITY}
        0700000000000000
        18000000 ca92d212
        0500000000000000 ffffffffffffffff 0500000000000000""",
    "watermark": f"""
        64707374 01 09 4800 {_IDENTITY}
        404142434445464748494a4b4c4d4e4f 0700000000000000
        00000000 2877317d""",
}


def _crc32c(data: bytes) -> int:
    """Compute CRC-32C bit by bit, as RFC 3720 (appendix B.4) defines it."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def _fields(record: Any) -> dict[str, Any]:
    fields = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if name == "words":
            counts = None if value.counts is None else value.counts.tolist()
            value = (value.values.dtype.str, value.values.tolist(), counts)
        fields[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return fields


@pytest.mark.parametrize("name", _GOLDEN)
def test_record_bytes_are_pinned(
    name: str, examples: dict[str, Any], codecs: dict[RecordType, Any]
) -> None:
    golden = bytes.fromhex(_GOLDEN[name])
    encode, decode = codecs[kind_of(golden)]
    assert encode(examples[name]).hex() == golden.hex()
    decoded = decode(golden)
    assert type(decoded) is type(examples[name])
    assert _fields(decoded) == _fields(examples[name])


@pytest.mark.parametrize("name", _GOLDEN)
def test_checksum_is_crc32c_of_all_other_bytes(name: str) -> None:
    assert _crc32c(b"123456789") == 0xE3069283
    golden = bytes.fromhex(_GOLDEN[name])
    size = int.from_bytes(golden[6:8], "little")
    checksum = int.from_bytes(golden[size - 4 : size], "little")
    assert checksum == _crc32c(golden[: size - 4] + golden[size:])


def test_json_records_are_pinned() -> None:
    registration = Registration(bytes(range(16)), "Gerät 7", bytes(range(16, 32)), 3)
    golden = (
        '{"version":1,"type":"registration","deployment":"000102030405060708090a0b0c0d0e0f",'
        '"name":"Gerät 7","enrollment":"101112131415161718191a1b1c1d1e1f","first_epoch":3}'
    ).encode()
    assert registration.to_bytes() == golden
    assert Registration.from_bytes(golden) == registration

    deregistration = Deregistration(bytes(range(16)), bytes(range(16, 32)), 9)
    golden = (
        b'{"version":1,"type":"deregistration","deployment":"000102030405060708090a0b0c0d0e0f",'
        b'"enrollment":"101112131415161718191a1b1c1d1e1f","last_epoch":9}'
    )
    assert deregistration.to_bytes() == golden
    assert Deregistration.from_bytes(golden) == deregistration

    drain = Drain(bytes(range(16)), 3, 4711)
    golden = (
        b'{"version":1,"type":"drain","deployment":"000102030405060708090a0b0c0d0e0f",'
        b'"partition":3,"end":4711}'
    )
    assert drain.to_bytes() == golden
    assert Drain.from_bytes(golden) == drain

    discard = Discard(bytes(range(16)), 4711)
    golden = (
        b'{"version":1,"type":"discard","deployment":"000102030405060708090a0b0c0d0e0f","end":4711}'
    )
    assert discard.to_bytes() == golden
    assert Discard.from_bytes(golden) == discard


def test_dead_letter_headers_are_pinned() -> None:
    letter = DeadLetter(
        "students.reports",
        3,
        41,
        Reason.UNREADABLE,
        "batch is corrupt: checksum mismatch",
        b"\x00\xff",
    )
    headers = [
        ("dpstream-topic", b"students.reports"),
        ("dpstream-partition", b"3"),
        ("dpstream-offset", b"41"),
        ("dpstream-reason", b"unreadable"),
        ("dpstream-detail", b"batch is corrupt: checksum mismatch"),
    ]
    assert letter.to_record() == (b"\x00\xff", headers)
    assert DeadLetter.from_record(b"\x00\xff", headers) == letter
