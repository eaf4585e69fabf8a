"""Records of many producers in one: what a relay writes of what gateways have sent.

A bundle holds whole records, unchanged, each after its length (`topics.memberships.encode_number`).
It adds nothing to them: who reads one takes each for itself, as if it lay there alone, and all of
them at the bundle's offset. A bundle is in no other bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topics.frames import (
    RECORD_CAP,
    U4_MAX,
    CodecError,
    Frame,
    Kind,
    check_identities,
    check_range,
    kind_of,
)
from topics.memberships import decode_number, encode_number

_BUNDLE = Frame(Kind.BUNDLE, "I")
BUNDLE_ROOM = RECORD_CAP - _BUNDLE.size
"""Bytes that the records of a bundle may take, `bundled_bytes` each."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Records of a topic of raw reports.

    Attributes:
        fingerprint: 16 bytes, of the job.
        deployment: 16 bytes.
        records: at least one, each as it was sent. What it is, it says for itself: that somebody's
            record is of a later version does not keep others from being read.

    Raises:
        CodecError: a field has another length, or there are no records.
    """

    fingerprint: bytes
    deployment: bytes
    records: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("number of records", len(self.records), 1, U4_MAX)


def bundled_bytes(record: bytes) -> int:
    """What a record takes of a bundle."""
    return len(encode_number(len(record))) + len(record)


def encode_bundle(bundle: Bundle) -> bytes:
    """The record of a bundle.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`; see `split_records`.
    """
    payload = b"".join(part for each in bundle.records for part in (encode_number(len(each)), each))
    return _BUNDLE.seal(bundle.fingerprint, bundle.deployment, len(bundle.records), payload=payload)


def decode_bundle(data: bytes) -> Bundle:
    """The bundle of a record.

    Raises:
        CodecError: the record is not a valid bundle; what is in it may still be wrong.
    """
    fingerprint, deployment, count = _BUNDLE.open(data)
    records: list[bytes] = []
    place = _BUNDLE.size
    while place < len(data):
        size, place = decode_number(data, place)
        if place + size > len(data):
            raise CodecError(f"bundle ends within its record {len(records) + 1}")
        records.append(data[place : place + size])
        place += size
    if len(records) != count:
        raise CodecError(f"bundle of {len(records)} records, its header says {count}")
    return Bundle(fingerprint, deployment, tuple(records))


def is_bundle(data: bytes) -> bool:
    """Whether a record is one of many."""
    try:
        return kind_of(data) is Kind.BUNDLE
    except CodecError:
        return False


def records_in(data: bytes) -> tuple[bytes, ...]:
    """The records of a bundle; of anything else, or of a damaged one, itself."""
    if not is_bundle(data):
        return (data,)
    try:
        return decode_bundle(data).records
    except CodecError:
        return (data,)


def split_records(records: Sequence[bytes], room: int) -> Iterator[tuple[bytes, ...]]:
    """Records in their order, in parts that take no more than so many bytes of a bundle.

    One that takes more by itself is a part of its own.
    """
    part: list[bytes] = []
    taken = 0
    for record in records:
        size = bundled_bytes(record)
        if part and taken + size > room:
            yield tuple(part)
            part, taken = [], 0
        part.append(record)
        taken += size
    if part:
        yield tuple(part)
