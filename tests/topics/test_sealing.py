"""Test ciphertexts: they decrypt only with one key and context, and reveal only their length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.topics.batches import Batch, encode_batch
from dpstream.topics.frames import RECORD_TARGET, CodecError
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.sealed_batches import (
    SEALED_PAYLOAD_TARGET,
    SealedBatch,
    decode_sealed_batch,
    encode_sealed_batch,
    open_batch,
    seal_batch,
)
from dpstream.topics.sealed_messages import (
    open_rows,
    pack_reports,
    seal_rows,
    sealed_format,
    strictly_increases,
    unpack_reports,
)
from dpstream.topics.sealing import CIPHERTEXT_BYTES, Lock, key_id, seal, sealing_context, unseal

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
CONTEXT = sealing_context("aggregate", bytes(16), bytes(range(16)), 7)
FORM = MessageFormat(np.dtype("<u4"), distinct=1000)


def lock_to(key: X25519PrivateKey, context: bytes = CONTEXT) -> Lock:
    return Lock(key.public_key().public_bytes_raw(), context)


LOCK = lock_to(KEY)


def test_ciphertext_decrypts_only_with_its_key() -> None:
    ciphertext = seal(b"content", LOCK)
    assert len(ciphertext) == len(b"content") + CIPHERTEXT_BYTES
    assert unseal(ciphertext, KEY, CONTEXT) == b"content"
    assert unseal(ciphertext, OTHER, CONTEXT) is None
    assert seal(b"content", LOCK) != ciphertext


@pytest.mark.parametrize(
    "context",
    [
        sealing_context("stage 1", bytes(16), bytes(range(16)), 7),
        sealing_context("aggregate", bytes(range(16)), bytes(range(16)), 7),
        sealing_context("aggregate", bytes(16), bytes(16), 7),
        sealing_context("aggregate", bytes(16), bytes(range(16)), 8),
    ],
    ids=["party", "deployment", "fingerprint", "epoch"],
)
def test_ciphertext_does_not_decrypt_in_another_context(context: bytes) -> None:
    assert unseal(seal(b"content", LOCK), KEY, context) is None


def test_altered_ciphertext_does_not_decrypt() -> None:
    ciphertext = seal(b"content", LOCK)
    for place in range(len(ciphertext)):
        altered = bytearray(ciphertext)
        altered[place] ^= 1
        # The highest bit of an X25519 key is ignored (RFC 7748); the lowest bit is not.
        assert unseal(bytes(altered), KEY, CONTEXT) is None
    for short in (b"", ciphertext[:1], ciphertext[:CIPHERTEXT_BYTES], ciphertext[:-1]):
        assert unseal(short, KEY, CONTEXT) is None


@settings(max_examples=25, deadline=None)
@given(
    reports=st.lists(st.integers(0, 999), max_size=6),
    cover_traffic=st.integers(0, 3),
    layers=st.integers(1, 3),
)
def test_sealed_reports_round_trip(reports: list[int], cover_traffic: int, layers: int) -> None:
    values = np.array(reports, "<u4").reshape(-1, 1)
    rows = seal_rows(pack_reports(values, cover_traffic, FORM), [LOCK] * layers)
    assert rows.shape == (len(reports) + cover_traffic, sealed_format(FORM, layers).width)
    for _ in range(layers):
        rows = open_rows(rows, KEY, CONTEXT)
    assert sorted(unpack_reports(rows, FORM)[:, 0].tolist()) == sorted(reports)


def test_ciphertexts_of_other_keys_and_invalid_rows_are_skipped() -> None:
    values = np.arange(5, dtype="<u4")[:, None]
    own = seal_rows(pack_reports(values, 0, FORM), [LOCK])
    foreign = seal_rows(pack_reports(values, 0, FORM), [lock_to(OTHER)])
    packed = pack_reports(values, 0, FORM)
    packed.view(np.uint8)[0, 0] = 2
    packed.view(np.uint8)[1, -1] = 1
    strange = seal_rows(packed, [LOCK])
    opened = open_rows(np.concatenate([own, foreign, strange]), KEY, CONTEXT)
    assert len(opened) == 10
    assert sorted(unpack_reports(opened, FORM)[:, 0].tolist()) == [0, 1, 2, 2, 3, 3, 4, 4]


def test_ciphertext_order_is_independent_of_report_order() -> None:
    values = np.arange(4, dtype="<u4")[:, None]
    orders: dict[tuple[int, ...], int] = {}
    rounds = 600
    for _ in range(rounds):
        rows = open_rows(seal_rows(pack_reports(values, 0, FORM), [LOCK]), KEY, CONTEXT)
        order = tuple(unpack_reports(rows, FORM)[:, 0].tolist())
        orders[order] = orders.get(order, 0) + 1
    # Chi-squared with 23 degrees of freedom exceeds 84 with a probability below 1e-8.
    expected = rounds / 24
    assert sum((count - expected) ** 2 for count in orders.values()) / expected < 84
    assert len(orders) == 24


def test_ciphertext_size_is_independent_of_the_content() -> None:
    for form in (
        FORM,
        MessageFormat(np.dtype("u1"), width=17),
        MessageFormat(np.dtype("<u8"), width=2),
    ):
        report = np.zeros((1, form.width), form.dtype)
        full = np.full((1, form.width), np.iinfo(form.dtype).max, form.dtype)
        widths = {
            seal_rows(pack_reports(rows[0], rows[1], form), [LOCK]).shape
            for rows in ((report, 0), (full, 0), (report[:0], 1))
        }
        assert widths == {(1, sealed_format(form, 1).width)}


def test_strictly_increasing_rows_are_recognized() -> None:
    rows = np.array([[1, 5], [1, 6], [2, 0]], "<u8")
    assert strictly_increases(rows)
    assert strictly_increases(rows[:0])
    for order in ([0, 0, 1], [1, 0, 2], [2, 0, 1], [0, 1, 1]):
        assert not strictly_increases(rows[order])


@pytest.fixture
def batch(examples: dict[str, Any]) -> Batch:
    found: Batch = examples["plain batch"]
    return found


def test_sealed_batch_reveals_only_epoch_and_key(batch: Batch) -> None:
    record = seal_batch(batch, LOCK)
    sealed = decode_sealed_batch(record)
    assert sealed.key == key_id(LOCK.public_key)
    assert open_batch(sealed, KEY, CONTEXT).enrollment == batch.enrollment
    for hidden in (batch.enrollment, batch.batch, encode_batch(batch)[-3:]):
        assert hidden not in record


def test_batch_of_another_job_or_epoch_cannot_be_unsealed(batch: Batch) -> None:
    sealed = decode_sealed_batch(seal_batch(batch, LOCK))
    others: dict[str, Any] = {"epoch": 8, "deployment": bytes(16), "fingerprint": bytes(16)}
    for name, value in others.items():
        with pytest.raises(
            CodecError, match=("the sealed batch belongs to another job, deployment or epoch")
        ):
            open_batch(replace(sealed, **{name: value}), KEY, CONTEXT)
    with pytest.raises(
        CodecError, match=("decryption failed: the ciphertext was altered or sealed to another key")
    ):
        open_batch(sealed, OTHER, CONTEXT)
    with pytest.raises(CodecError, match="too short"):
        open_batch(replace(sealed, ciphertext=seal(b"", LOCK)), KEY, CONTEXT)


def test_full_batches_fit_in_their_records(batch: Batch) -> None:
    rows = np.zeros((9_000, 7), "<u8")
    for chunk in split_messages(Messages(rows), SEALED_PAYLOAD_TARGET):
        assert len(seal_batch(replace(batch, words=chunk), LOCK)) <= RECORD_TARGET


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("key", b"short", "key ID has 5 bytes; expected 8"),
        ("ciphertext", bytes(47), "ciphertext has 47 bytes; expected at least"),
        ("epoch", 0, "'epoch' is 0; expected 1"),
        ("deployment", b"", "deployment has 0 bytes"),
    ],
)
def test_invalid_sealed_batch_fields_are_rejected(field: str, value: Any, message: str) -> None:
    whole = SealedBatch(bytes(16), bytes(16), 7, bytes(8), bytes(48))
    assert decode_sealed_batch(encode_sealed_batch(whole)) == whole
    with pytest.raises(CodecError, match=message):
        replace(whole, **{field: value})
