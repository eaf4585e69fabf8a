"""Test request bodies and contents of devices: round trips, rejections and arbitrary input."""

import secrets
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dpstream.topics.envelopes import (
    BODY_MAX,
    ENVELOPE_MAX,
    ENVELOPE_OVERHEAD,
    HEADER_BYTES,
    ContentFormat,
    EnvelopeError,
    decode_body,
    encode_body,
    encode_envelope,
)
from dpstream.topics.loose_batches import (
    LooseBatch,
    decode_loose_batch,
    encode_loose_batch,
    horizon_tag,
    report_tag,
    subject_of_device,
    subject_of_token,
)

ids = st.binary(min_size=16, max_size=16)
forms = st.builds(
    ContentFormat, st.integers(1, 40), st.integers(1, 4), st.sampled_from([1, 2, 4, 8])
)
ID = b"i" * 16
ONE = encode_envelope(ID, ID, True, b"content")


@given(
    st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=20),
    ids,
    ids,
    st.integers(1, 2**63 - 1),
    st.none() | st.binary(min_size=8, max_size=8),
    st.integers(1, 200),
)
def test_request_bodies_round_trip(
    said: Any, deployment: bytes, fingerprint: bytes, epoch: int, key: bytes | None, size: int
) -> None:
    contents = [secrets.token_bytes(size) for _ in said]
    envelopes = [
        encode_envelope(device, report, enrolls, content)
        for (device, report, enrolls), content in zip(said, contents, strict=True)
    ]
    data = encode_body(deployment, fingerprint, epoch, key, envelopes)
    assert len(data) == HEADER_BYTES + len(said) * (ENVELOPE_OVERHEAD + size)
    read = decode_body(data)
    assert (read.deployment, read.fingerprint, read.epoch) == (deployment, fingerprint, epoch)
    assert (read.key, len(read)) == (key, len(said))
    devices, reports = [each.tobytes() for each in read.devices], list(map(bytes, read.reports))
    assert list(zip(devices, reports, read.enrolls.tolist(), strict=True)) == said
    assert [each.tobytes() for each in read.contents] == contents


def header(**changes: Any) -> bytes:
    said = {
        "magic": b"dpsd",
        "version": b"\1",
        "sealed": b"\0",
        "size": len(ONE).to_bytes(2, "little"),
        "ids": ID + ID,
        "epoch": (1).to_bytes(8, "little"),
        "key": bytes(8),
    }
    return b"".join({**said, **changes}.values())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "bytes is shorter than its 56-byte header"),
        (header()[:-1], "bytes is shorter than its 56-byte header"),
        (header(magic=b"dpst") + ONE, "does not start with b'dpsd'"),
        (header(version=b"\2") + ONE, "version 2"),
        (header(sealed=b"\2") + ONE, "sealed flag is"),
        (header(key=b"k" * 8) + ONE, "sealed flag is"),
        (header(epoch=bytes(8)) + ONE, "epoch is 0; expected 1"),
        (header(epoch=b"\xff" * 8) + ONE, "epoch is .*; expected 1"),
        (header(), "bytes; expected a 56-byte header"),
        (header() + ONE[:-1], "bytes; expected a 56-byte header"),
        (header() + ONE + b"x", "bytes; expected a 56-byte header"),
        (header(size=bytes(2)) + ONE, "envelopes of 0 bytes"),
        (header(size=b"\x21\0") + ONE[:33], "envelopes of 33 bytes"),
        (header() + ONE[:32] + b"\3" + ONE[33:], "a purpose is out of range; expected 0 to 2"),
        (header() + bytes(BODY_MAX), f"exceeds the maximum, {BODY_MAX}"),
    ],
)
def test_invalid_request_bodies_are_rejected(data: bytes, why: str) -> None:
    with pytest.raises(EnvelopeError, match=why):
        decode_body(data)


def test_encoding_rejects_invalid_envelopes() -> None:
    for device, report in ((ID[1:], ID), (ID, ID + b"x")):
        with pytest.raises(EnvelopeError, match="16 bytes"):
            encode_envelope(device, report, True, b"c")
    with pytest.raises(EnvelopeError, match=f"exceeds the maximum, {ENVELOPE_MAX}"):
        encode_envelope(ID, ID, True, bytes(ENVELOPE_MAX))
    for envelopes in ([], [ONE, ONE + b"x"]):
        with pytest.raises(
            EnvelopeError, match=("a body requires at least one envelope, all of the same size")
        ):
            encode_body(ID, ID, 1, None, envelopes)
    with pytest.raises(EnvelopeError, match=f"exceeds the maximum, {BODY_MAX}"):
        encode_body(ID, ID, 1, None, [bytes(ENVELOPE_MAX)] * 5)


@given(forms, st.data())
@settings(deadline=None)
def test_report_contents_round_trip(form: ContentFormat, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, form.slots), min_size=1, max_size=5))
    generator = np.random.default_rng(1)
    limit = 2 ** (8 * form.word_bytes) - 1
    words = [
        generator.integers(0, limit, (count, form.width), form.dtype, endpoint=True)
        for count in counts
    ]
    packed = [form.pack(each) for each in words]
    assert {len(each) for each in packed} == {form.size}
    rows = np.frombuffer(b"".join(packed), np.uint8).reshape(len(counts), -1)
    slots, used, good = form.unpack(rows)
    assert good.all()
    assert used.tolist() == counts
    for each, count, read in zip(words, counts, slots, strict=True):
        assert sorted(map(tuple, each.tolist())) == list(map(tuple, read[:count].tolist()))


def test_invalid_report_contents_are_rejected() -> None:
    form = ContentFormat(2, 1, 1)
    contents = np.array([[1, 0, 7, 0], [1, 0, 7, 7], [0, 0, 0, 7], [3, 0, 7, 7], [2, 1, 7, 7]])
    assert form.unpack(contents.astype(np.uint8))[2].tolist() == [True, False, False, False, False]
    for wrong in (np.zeros((1, 3), np.uint8), np.zeros(4, np.uint8)):
        with pytest.raises(EnvelopeError, match="bytes; expected"):
            form.unpack(wrong)
    for words in (np.zeros((1, 1), np.uint16), np.zeros((1, 2), np.uint8), np.zeros(1, np.uint8)):
        with pytest.raises(EnvelopeError, match="messages are"):
            form.pack(words)
    with pytest.raises(EnvelopeError, match="2 slots"):
        form.pack(np.zeros((3, 1), np.uint8))


@given(
    st.integers(1, 2**63 - 1),
    st.none() | st.binary(min_size=8, max_size=8).filter(any),
    st.integers(1, 50),
    st.integers(1, 60),
)
def test_loose_batches_round_trip(epoch: int, key: bytes | None, count: int, content: int) -> None:
    beside = 8 if key is None else 24
    rows = np.frombuffer(secrets.token_bytes(count * (beside + content)), np.uint8)
    batch = LooseBatch(ID, b"d" * 16, epoch, key, rows.reshape(count, -1))
    read = decode_loose_batch(encode_loose_batch(batch))
    assert (read.fingerprint, read.deployment, read.epoch, read.key) == (ID, b"d" * 16, epoch, key)
    assert np.array_equal(read.rows, batch.rows)
    assert [tag.tobytes() for tag in read.tags] == [row[:8].tobytes() for row in batch.rows]
    assert read.contents.shape == (count, content)
    if key is not None:
        assert np.array_equal(read.reports, batch.rows[:, 8:24])


def test_tags_depend_on_every_input() -> None:
    key, other = b"k" * 32, b"x" * 32
    ann, device = subject_of_token("ann"), subject_of_device(b"ann")
    tags = {
        report_tag(key, ID, 1, ann),
        report_tag(other, ID, 1, ann),
        report_tag(key, b"j" * 16, 1, ann),
        report_tag(key, ID, 2, ann),
        report_tag(key, ID, 1, device),
        horizon_tag(key, ID, 1, ann),
        horizon_tag(key, ID, 2, ann),
    }
    assert len(tags) == 7
    assert {len(tag) for tag in tags} == {8}
    assert report_tag(key, ID, 1, ann) in tags
    assert report_tag(key, ID, 1, ann).hex() == "b4be450f8d321243"
