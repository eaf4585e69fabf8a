"""Test strict parsing of JSON and headers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dpstream.topics.frames import CodecError, OversizedError, VersionError
from dpstream.topics.records import (
    DeadLetter,
    Deregistration,
    Drain,
    Reason,
    Registration,
    decode_producer_record,
)

_BODY = {
    "version": 1,
    "type": "registration",
    "deployment": "ab" * 16,
    "name": "gateway",
    "enrollment": "cd" * 16,
    "first_epoch": 3,
}


def _edited(**changes: Any) -> bytes:
    return json.dumps(_BODY | changes).encode()


def test_json_record_is_read_whatever_its_formatting() -> None:
    spaced = json.dumps(_BODY, indent=2, sort_keys=True).encode()
    expected = Registration(b"\xab" * 16, "gateway", b"\xcd" * 16, 3)
    assert Registration.from_bytes(spaced) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff", "record is not JSON"),
        (b"{", "record is not JSON"),
        (b"[" * 4000, "record is not JSON"),
        (b"[" * 4000 + b"]" * 96, "record is not JSON"),
        (b"1" * 4096, "JSON"),
        (b"[]", "record is not a JSON object"),
        (b'{"version":1,"version":1}', "a key of the record is repeated"),
        (
            _edited(type="hello"),
            ("record has unknown type 'hello'; expected registration, deregistration or drain"),
        ),
        (_edited(type=None), "record has unknown type"),
        (_edited(color="red"), "registration has unknown key 'color'"),
        (_edited(type="deregistration"), "deregistration is missing last_epoch"),
        (_edited(version="1"), "'version' of a registration has type str; expected int"),
        (_edited(version=True), "'version' of a registration has type bool; expected int"),
        (_edited(name=5), "'name' of a registration has type int; expected str"),
        *(
            (_edited(name=name), "expected 1 to 200 printable characters")
            for name in ("", "x" * 201, "a\nb", "\ud800")
        ),
        (_edited(first_epoch=True), "'first_epoch' of a registration has type bool; expected int"),
        (_edited(first_epoch=1.0), "'first_epoch' of a registration has type float; expected int"),
        (_edited(first_epoch=float("nan")), "'first_epoch' of a registration has type float"),
        (_edited(first_epoch=0), "'first_epoch' is 0; expected 1 to"),
        (_edited(first_epoch=2**63), "'first_epoch' is 9223372036854775808"),
        *(
            (_edited(enrollment=text), "enrollment is invalid; expected 32 lower-case hexadecimal")
            for text in ("AB" * 16, "ab" * 15, "a b" * 16, "٣" * 32)
        ),
    ],
)
def test_invalid_record_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode_producer_record(data)


def test_record_of_an_unsupported_version_or_size_is_rejected() -> None:
    without = {key: value for key, value in _BODY.items() if key != "version"}
    with pytest.raises(CodecError, match="registration is missing version"):
        Registration.from_bytes(json.dumps(without).encode())
    with pytest.raises(VersionError, match="record has version 2; expected 1"):
        Registration.from_bytes(_edited(version=2, color="red"))
    with pytest.raises(OversizedError, match="JSON record of 4097 bytes exceeds the maximum,"):
        Registration.from_bytes(_edited() + b" " * (4097 - len(_edited())))


def test_record_of_one_type_is_not_read_as_another() -> None:
    with pytest.raises(CodecError, match="type 'registration'; expected 'deregistration'"):
        Deregistration.from_bytes(_edited())
    deregistration = Deregistration(bytes(16), bytes(16), 0)
    with pytest.raises(CodecError, match="type 'deregistration'; expected 'registration'"):
        Registration.from_bytes(deregistration.to_bytes())
    with pytest.raises(CodecError, match="'last_epoch' is -1"):
        Deregistration(bytes(16), bytes(16), -1)
    drain = Drain(bytes(16), 3, 0)
    with pytest.raises(CodecError, match="type 'drain'; expected 'deregistration'"):
        Deregistration.from_bytes(drain.to_bytes())
    with pytest.raises(CodecError, match="type 'registration'; expected 'drain'"):
        Drain.from_bytes(_edited())


@pytest.mark.parametrize(("partition", "end"), [(-1, 0), (0, -1), (0, 2**63)])
def test_drain_with_an_invalid_position_is_rejected(partition: int, end: int) -> None:
    with pytest.raises(CodecError, match="expected 0 to"):
        Drain(bytes(16), partition, end)
    body = {"version": 1, "type": "drain", "deployment": "00" * 16, "partition": 0, "end": 0}
    wrong = json.dumps(body | {"partition": partition, "end": end}).encode()
    with pytest.raises(CodecError, match="expected 0 to"):
        decode_producer_record(wrong)


def test_mutated_records_are_rejected_or_decode_to_valid_records() -> None:
    rng = random.Random(3)
    originals = [
        Registration(b"\xab" * 16, "gateway", b"\xcd" * 16, 3).to_bytes(),
        Deregistration(b"\xab" * 16, b"\xcd" * 16, 30).to_bytes(),
        Drain(b"\xab" * 16, 3, 4711).to_bytes(),
    ]
    accepted = rejected = 0
    for _ in range(10_000):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(2)] = rng.choice(
                [b"", b"0", b'"', b"{", b",", bytes([rng.randrange(256)])]
            )
        try:
            record = decode_producer_record(bytes(data))
        except CodecError:
            rejected += 1
        else:
            accepted += 1
            assert decode_producer_record(record.to_bytes()) == record
    assert accepted > 500
    assert rejected > 5000


_HEADERS = {
    "dpstream-topic": b"students.reports",
    "dpstream-partition": b"3",
    "dpstream-offset": b"41",
    "dpstream-reason": b"epoch",
    "dpstream-detail": b"",
}


def test_dead_letter_headers_are_checked() -> None:
    letter = DeadLetter.from_record(b"", list(_HEADERS.items()))
    assert letter == DeadLetter("students.reports", 3, 41, Reason.EPOCH, "", b"")
    for name in _HEADERS:
        missing = [header for header in _HEADERS.items() if header[0] != name]
        with pytest.raises(CodecError, match=f"is missing {name.removeprefix('dpstream-')}"):
            DeadLetter.from_record(b"", missing)
        with pytest.raises(CodecError, match=f"header {name} of a dead letter is repeated"):
            DeadLetter.from_record(b"", [*_HEADERS.items(), (name, _HEADERS[name])])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("topic", b"\xff", "header dpstream-topic of a dead letter is not UTF-8"),
        ("partition", b"-1", "partition of a dead letter is not an integer from 0"),
        ("partition", b"03", "partition of a dead letter is not an integer from 0"),
        ("offset", b"4 ", "offset of a dead letter is not an integer from 0"),
        ("offset", b"9" * 19, "'offset' is 9999999999999999999"),
        ("offset", b"9" * 9999, "offset of a dead letter is not an integer from 0"),
        ("reason", b"mood", "unknown reason 'mood'; expected one of unreadable, fingerprint"),
        ("color", b"red", "dead letter has unknown key 'color'"),
    ],
)
def test_dead_letter_with_invalid_header_is_rejected(
    name: str, content: bytes, message: str
) -> None:
    headers = _HEADERS | {f"dpstream-{name}": content}
    with pytest.raises(CodecError, match=message):
        DeadLetter.from_record(b"", list(headers.items()))
