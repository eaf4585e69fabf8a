"""What stages sign is read as it was said, and nothing that was altered is."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from topics.frames import CodecError, OversizedError
from topics.signed import (
    Decided,
    Released,
    Software,
    StageRecord,
    Statement,
    digest_of,
    public_key_of,
    read_statement,
    sign_statement,
)
from topics.words import Words

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SOFTWARE = {"dpstream": Software("0.1.0", "installed", bytes(range(32)))}
RECORD = StageRecord(bytes(16), "shuffle", "one", 1_700_000_000_000, "3.11.2", SOFTWARE)
DECIDED = Decided(bytes(16), "shuffle", "one", 3, 1, bytes(32))
RELEASED = Released(
    bytes(16), "shuffle-2", "one", 3, 1, "hop-1", 7, bytes(range(16)), 2, bytes(range(32))
)
STATEMENTS: list[Statement] = [RECORD, replace(RECORD, noise_key=bytes(32)), DECIDED, RELEASED]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: each.kind)
def test_a_statement_is_read_as_it_was_said(statement: Statement) -> None:
    record = sign_statement(statement, KEY)
    assert record == sign_statement(statement, KEY)
    signed = read_statement(record)
    assert signed.statement == statement
    assert signed.signer == public_key_of(KEY)


def test_the_bytes_of_a_statement_are_pinned() -> None:
    outer = json.loads(sign_statement(DECIDED, KEY))
    assert base64.b64decode(outer["statement"]) == (
        b'{"deployment":"00000000000000000000000000000000","epoch":3,"instance":1,'
        b'"manifest":"0000000000000000000000000000000000000000000000000000000000000000",'
        b'"stage":"shuffle","type":"decided","version":1,"worker":"one"}'
    )
    assert outer["signer"] == "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
    assert outer["signature"].startswith("450894bc56d6b76ea4c6f2ddc5b9b121")


def test_no_altered_byte_is_accepted() -> None:
    """Neither of the statement, nor of the signature, nor another key in the signer's place."""
    record = sign_statement(RELEASED, KEY)
    for place in range(0, len(record), 3):
        altered = bytearray(record)
        altered[place] ^= 1
        with pytest.raises(CodecError):
            read_statement(bytes(altered))
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    outer = json.loads(record) | {"signer": public_key_of(other).hex()}
    with pytest.raises(CodecError, match="not signed by the key that it names"):
        read_statement(json.dumps(outer).encode())


def signed_as(body: dict[str, Any]) -> bytes:
    """A record whose signature is right, whatever it says."""
    said = json.dumps(body).encode()
    outer = {
        "statement": base64.b64encode(said).decode(),
        "signature": KEY.sign(b"dpstream stage statement\0" + said).hex(),
        "signer": public_key_of(KEY).hex(),
    }
    return json.dumps(outer).encode()


def body_of(statement: Statement) -> dict[str, Any]:
    outer = json.loads(sign_statement(statement, KEY))
    body: dict[str, Any] = json.loads(base64.b64decode(outer["statement"]))
    return body


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        (DECIDED, {"version": 2}),
        (DECIDED, {"type": "promised"}),
        (DECIDED, {"epoch": 0}),
        (DECIDED, {"epoch": True}),
        (DECIDED, {"epoch": "3"}),
        (DECIDED, {"manifest": "00"}),
        (DECIDED, {"manifest": "0" * 63 + "G"}),
        (DECIDED, {"deployment": 0}),
        (DECIDED, {"stage": ""}),
        (DECIDED, {"worker": "\n"}),
        (DECIDED, {"worker": "x" * 201}),
        (DECIDED, {"more": 1}),
        (RELEASED, {"chunks": 0}),
        (RELEASED, {"attempt": "00" * 32}),
        (RECORD, {"software": {}}),
        (RECORD, {"software": []}),
        (RECORD, {"software": {"dpstream": "0.1.0"}}),
        (RECORD, {"software": {"dpstream": {"version": "1", "form": "x"}}}),
        (RECORD, {"software": {"dpstream": {"version": 1, "form": "x", "digest": "00" * 32}}}),
        (RECORD, {"software": {"": {"version": "1", "form": "x", "digest": "00" * 32}}}),
        (RECORD, {"noise_key": "00"}),
        (RECORD, {"time": -1}),
    ],
)
def test_what_says_anything_else_is_refused(statement: Statement, change: dict[str, Any]) -> None:
    body = body_of(statement)
    assert read_statement(signed_as(body)).statement == statement
    with pytest.raises(CodecError):
        read_statement(signed_as(body | change))


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b"\xff", b"{" * 100_000])
def test_what_is_no_statement_is_refused(record: bytes) -> None:
    with pytest.raises(CodecError):
        read_statement(record)


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(OversizedError):
        read_statement(b" " * (1 << 20))


def test_the_digest_of_words_changes_with_each_of_them_their_order_and_their_form() -> None:
    words = np.array([[1], [2], [2]], np.uint8)
    counted = Words(np.array([[1], [2]], np.uint8), np.array([1, 2], np.uint32))
    digests = {
        digest_of(pieces)
        for pieces in (
            [Words(words)],
            [Words(words[::-1])],
            [Words(words[:2])],
            [Words(words[:2]), Words(words[2:])],
            [Words(words.astype("<u2"))],
            [counted],
            [],
        )
    }
    assert len(digests) == 7
    assert digest_of([Words(words)]) == digest_of([Words(words.copy())])
