"""Test that valid Ed25519 signatures are accepted and all others rejected."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpstream.randomizers.client.ed25519 import is_good

ORDER = 2**252 + 27742317777372353535851937790883648493


def signed(message: bytes, seed: bytes = bytes(32)) -> tuple[bytes, bytes]:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.sign(message), key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def library_says(signature: bytes, message: bytes, public_key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def test_signature_of_rfc_8032_verifies() -> None:
    # RFC 8032, 7.1, test 3.
    key = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    signature = (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    assert is_good(bytes.fromhex(signature), b"\xaf\x82", bytes.fromhex(key))
    assert not is_good(bytes.fromhex(signature), b"\xaf\x83", bytes.fromhex(key))


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=100))
def test_valid_signatures_verify(seed: bytes, message: bytes) -> None:
    signature, key = signed(message, seed)
    assert is_good(signature, message, key)
    assert not is_good(signature, message + b"!", key)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 64 * 8 + 32 * 8 + 5 * 8 - 1))
@example(511)
def test_any_flipped_bit_invalidates_a_signature(bit: int) -> None:
    message = b"hello"
    signature, key = signed(message)
    data = bytearray(signature + key + message)
    data[bit // 8] ^= 1 << bit % 8
    parts = bytes(data[:64]), bytes(data[96:]), bytes(data[64:96])
    assert not is_good(*parts)
    assert not library_says(*parts)


def test_malleable_signatures_are_rejected() -> None:
    signature, key = signed(b"hello")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    assert not is_good(signature[:32] + scalar.to_bytes(32, "little"), b"hello", key)


@pytest.mark.parametrize("message", [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"])
def test_signature_of_a_negated_message_is_rejected(message: bytes) -> None:
    """The negated point has the other sign bit, which is set for about half of the points."""
    signature, key = signed(message)
    scalar = ORDER - int.from_bytes(signature[32:], "little")
    assert not is_good(signature[:32] + scalar.to_bytes(32, "little"), message, key)


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"\xff" * 32, b"\2" + bytes(31)])
def test_keys_of_small_order_are_rejected(key: bytes) -> None:
    for commitment in (key, b"\1" + bytes(31)):
        assert not is_good(commitment + bytes(32), b"anything", key)


def test_signatures_and_keys_of_other_lengths_are_rejected() -> None:
    signature, key = signed(b"hello")
    assert not is_good(signature[:-1], b"hello", key)
    assert not is_good(signature + b"\0", b"hello", key)
    assert not is_good(signature, b"hello", key[:-1])
