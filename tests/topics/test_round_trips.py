"""Test that every valid record round trips and has a single encoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as npst

from dpstream.topics.batches import (
    Batch,
    Punctuation,
    decode_batch,
    decode_punctuation,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.frames import INTEGER_MAX, RECORD_CAP, U4_MAX, CodecError, OversizedError
from dpstream.topics.manifests import (
    PRODUCERS_MAX,
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
)
from dpstream.topics.messages import Messages
from dpstream.topics.partials import (
    PartialPart,
    decode_partial,
    encode_partial,
    join_parts,
    split_partial,
)
from dpstream.topics.records import (
    DeadLetter,
    Deregistration,
    Discard,
    Drain,
    Reason,
    Registration,
    decode_producer_record,
)
from dpstream.topics.redriven import Redriven

DTYPES = [np.dtype(code) for code in ("<u1", "<u2", "<u4", "<u8")]
identities = st.binary(min_size=16, max_size=16)
epochs = st.integers(1, INTEGER_MAX)
offsets = st.integers(0, INTEGER_MAX)


@st.composite
def words(draw: st.DrawFn) -> Messages:
    dtype: np.dtype[np.unsignedinteger] = draw(st.sampled_from(DTYPES))
    shape = (draw(st.integers(0, 20)), draw(st.integers(1, 4)))
    values = draw(npst.arrays(dtype, shape))
    if draw(st.booleans()):
        return Messages(values)
    values = np.unique(values, axis=0)
    return Messages(
        values, draw(npst.arrays(np.uint32, len(values), elements=st.integers(1, U4_MAX)))
    )


def same_words(one: Messages, other: Messages) -> bool:
    if one.values.dtype != other.values.dtype or not np.array_equal(one.values, other.values):
        return False
    if one.counts is None or other.counts is None:
        return one.counts is other.counts
    return np.array_equal(one.counts, other.counts)


@given(st.builds(Batch, identities, identities, identities, identities, epochs, words()))
def test_batch_round_trips(batch: Batch) -> None:
    data = encode_batch(batch)
    decoded = decode_batch(data)
    assert same_words(decoded.words, batch.words)
    assert decoded.words.messages == batch.words.messages
    assert replace(decoded, words=batch.words) == batch
    assert encode_batch(decoded) == data


@given(st.data(), words())
def test_chunk_round_trips(data: st.DataObject, content: Messages) -> None:
    total = data.draw(st.integers(1, U4_MAX))
    chunk = Chunk(
        data.draw(identities),
        data.draw(identities),
        data.draw(epochs),
        data.draw(offsets),
        data.draw(identities),
        data.draw(st.integers(0, total - 1)),
        total,
        content,
        data.draw(st.integers(1, 3)),
    )
    record = encode_chunk(chunk)
    decoded = decode_chunk(record)
    assert same_words(decoded.words, content)
    assert replace(decoded, words=content) == chunk
    assert encode_chunk(decoded) == record


@given(st.data(), st.integers(0, INTEGER_MAX))
def test_punctuation_round_trips(data: st.DataObject, population: int) -> None:
    punctuation = Punctuation(
        data.draw(identities),
        data.draw(identities),
        data.draw(identities),
        data.draw(epochs),
        batches=data.draw(st.integers(0, U4_MAX)),
        contributors=data.draw(st.integers(0, population)),
        population=population,
        drawing=data.draw(st.binary(min_size=8, max_size=8)),
    )
    assert decode_punctuation(encode_punctuation(punctuation)) == punctuation


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    epoch = draw(epochs)
    producers = tuple(draw(st.lists(st.booleans(), max_size=40)))
    included = sum(producers)
    populations = draw(st.lists(st.integers(0, U4_MAX), min_size=included, max_size=included))
    contributors = draw(st.integers(0, sum(populations)))
    first_offset = draw(offsets)
    instance = draw(st.integers(1, 3))
    named = instance > 1 or draw(st.booleans())
    drawing = st.binary(min_size=8, max_size=8)
    drawings = draw(st.lists(drawing, min_size=included, max_size=included)) if named else []
    statuses = (
        [WindowStatus.RELEASED, WindowStatus.SUPPRESSED] if contributors else [WindowStatus.EMPTY]
    )
    return Manifest(
        draw(identities),
        draw(identities),
        epoch,
        draw(st.sampled_from(statuses)),
        first_offset,
        draw(st.integers(first_offset, INTEGER_MAX)),
        draw(st.integers(1, epoch)),
        producers,
        tuple(populations),
        contributors,
        draw(st.integers(sum(populations), INTEGER_MAX)),
        draw(offsets),
        instance,
        tuple(drawings),
    )


@given(manifests())
def test_manifest_round_trips(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def _crowded(producers: int) -> Manifest:
    return Manifest(
        fingerprint=bytes(16),
        deployment=bytes(16),
        epoch=1,
        window_status=WindowStatus.RELEASED,
        first_offset=0,
        cut_offset=0,
        first_epoch=1,
        producers=(True,) * producers,
        populations=(U4_MAX,) * producers,
        contributors=1,
        population=U4_MAX * producers,
        timestamp=0,
    )


def test_manifest_fits_60000_producers_and_rejects_more() -> None:
    assert PRODUCERS_MAX > 60_000
    manifest = _crowded(PRODUCERS_MAX)
    data = encode_manifest(manifest)
    assert RECORD_CAP - 8 < len(data) <= RECORD_CAP
    assert decode_manifest(data) == manifest
    with pytest.raises(CodecError, match=f"number of producers is {PRODUCERS_MAX + 1}"):
        _crowded(PRODUCERS_MAX + 1)


@given(st.data(), st.binary(max_size=200), st.integers(1, U4_MAX))
def test_partial_round_trips(data: st.DataObject, payload: bytes, total: int) -> None:
    part = PartialPart(
        data.draw(identities),
        data.draw(identities),
        data.draw(epochs),
        data.draw(offsets),
        data.draw(identities),
        data.draw(st.integers(0, total - 1)),
        total,
        payload,
    )
    assert decode_partial(encode_partial(part)) == part


def _parts(payload: bytes, **fields: Any) -> list[PartialPart]:
    defaults: dict[str, Any] = {
        "fingerprint": bytes(16),
        "deployment": bytes(16),
        "epoch": 3,
        "manifest_offset": 4,
        "attempt": bytes(16),
    }
    return list(split_partial(**(defaults | fields), payload=payload))


@pytest.mark.parametrize("size", [0, 1, RECORD_CAP - 88, RECORD_CAP - 87, 3 * RECORD_CAP])
def test_large_partial_is_split_into_records_that_can_be_joined(size: int) -> None:
    payload = np.random.default_rng(size).bytes(size)
    records = [encode_partial(part) for part in _parts(payload)]
    assert len(records) == max(1, -(-size // (RECORD_CAP - 88)))
    assert all(len(record) == RECORD_CAP for record in records[:-1])
    parts = [decode_partial(record) for record in records]
    assert join_parts(parts[::-1] + parts) == payload


def test_partial_is_joined_only_from_all_of_its_chunks() -> None:
    parts = _parts(bytes(3 * RECORD_CAP))
    with pytest.raises(CodecError, match="only 3 of its 4 chunks"):
        join_parts(parts[1:])
    with pytest.raises(CodecError, match="a partial has no chunks"):
        join_parts([])
    with pytest.raises(CodecError, match="of a partial appears twice, with different contents"):
        join_parts([*parts, replace(parts[0], payload=b"x")])
    for other in ({"attempt": bytes([1]) * 16}, {"epoch": 9}, {"manifest_offset": 9}):
        with pytest.raises(CodecError, match=("chunks of different partials cannot be joined")):
            join_parts([*parts[:-1], _parts(bytes(3 * RECORD_CAP), **other)[-1]])
    with pytest.raises(OversizedError, match="bytes exceeds the maximum,"):
        encode_partial(replace(parts[0], payload=bytes(RECORD_CAP)))


names = st.text(st.characters().filter(str.isprintable), min_size=1, max_size=200)


@given(st.builds(Registration, identities, names, identities, epochs))
def test_registration_round_trips(registration: Registration) -> None:
    data = registration.to_bytes()
    assert Registration.from_bytes(data) == decode_producer_record(data) == registration


@given(st.builds(Deregistration, identities, identities, offsets))
def test_deregistration_round_trips(deregistration: Deregistration) -> None:
    data = deregistration.to_bytes()
    assert Deregistration.from_bytes(data) == decode_producer_record(data) == deregistration


@given(st.builds(Drain, identities, offsets, offsets))
def test_drain_round_trips(drain: Drain) -> None:
    data = drain.to_bytes()
    assert Drain.from_bytes(data) == decode_producer_record(data) == drain


@given(st.builds(Discard, identities, offsets))
def test_discard_round_trips_and_is_not_read_as_another_record(discard: Discard) -> None:
    data = discard.to_bytes()
    assert Discard.from_bytes(data) == discard
    with pytest.raises(CodecError):
        DeadLetter.from_record(data, ())
    with pytest.raises(CodecError):
        Redriven.from_bytes(data)


letters = st.builds(
    DeadLetter,
    st.text(st.characters(codec="utf-8")),
    st.integers(0, U4_MAX),
    offsets,
    st.sampled_from(Reason),
    st.text(st.characters(codec="utf-8")),
    st.binary(max_size=100),
)


@given(letters)
def test_dead_letter_round_trips(letter: DeadLetter) -> None:
    value, headers = letter.to_record()
    assert value == letter.value
    assert DeadLetter.from_record(value, [("another", b"\xff"), *headers[::-1]]) == letter
