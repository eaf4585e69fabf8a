"""Common format of all binary records: a fixed header, a checksum, and size limits.

Every version of a record type has one little-endian header of fixed length: magic, version, kind,
header length, fingerprint, deployment, the fields of the kind, payload length, checksum. The
payload follows and ends the record. The checksum is a CRC-32C of all other bytes.

* Encoding is canonical: a decoded record encodes to the same bytes.
* The magic does not begin with 0, which is the first byte of Schema Registry records.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from crc32c import crc32c

MAGIC = b"dpst"
VERSION = 1
RECORD_TARGET = 64 * 1024
"""Target size of an encoded record, in bytes."""
RECORD_CAP = 256 * 1024
"""Maximum size of an encoded record, in bytes; larger records are neither written nor read."""
PAYLOAD_TARGET = RECORD_TARGET - 128
"""Target size of a payload, in bytes; with any header, the record is within `RECORD_TARGET`."""
MESSAGES_CAP = 2**40
"""Maximum number of messages in one record."""
U4_MAX = 2**32 - 1
INTEGER_MAX = 2**63 - 1
"""Largest epoch, offset or number of devices: the largest signed 64-bit integer."""

_IDENTITY_BYTES = 16
_OPENING = struct.Struct("<4sBB")


class CodecError(ValueError):
    pass


class OversizedError(CodecError):
    pass


class VersionError(CodecError):
    pass


class RecordType(IntEnum):
    BATCH = 1
    PUNCTUATION = 2
    MANIFEST = 3
    CHUNK = 4
    PARTIAL = 5
    SEALED_BATCH = 6
    LOOSE_BATCH = 7
    ENROLLMENTS = 8
    WATERMARK = 9


_KINDS: Mapping[int, RecordType] = {kind.value: kind for kind in RecordType}
# Newest versions of types with more than one version.
_NEWEST: Mapping[int, int] = {RecordType.MANIFEST: 3, RecordType.CHUNK: 2}


def kind_of(data: bytes) -> RecordType:
    """Return the type that a record's first six bytes claim; the rest is unchecked."""
    if len(data) > RECORD_CAP:
        raise OversizedError(f"record of {len(data)} bytes exceeds the maximum, {RECORD_CAP}")
    if len(data) < _OPENING.size:
        raise CodecError(f"record of {len(data)} bytes is too short for a dpstream record")
    magic, version, kind = _OPENING.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"record starts with {magic.hex()}; expected {MAGIC.hex()} ({MAGIC!r})")
    newest = _NEWEST.get(kind, VERSION)
    if not VERSION <= version <= newest:
        known = f"{VERSION}" if newest == VERSION else f"{VERSION} to {newest}"
        raise VersionError(f"record has version {version}; expected {known}")
    known_kind = _KINDS.get(kind)
    if known_kind is None:
        raise CodecError(f"record has unknown kind {kind}; expected 1 to {len(RecordType)}")
    return known_kind


def version_of(data: bytes) -> int:
    return data[len(MAGIC)]


def check_identities(**identities: bytes) -> None:
    for name, identity in identities.items():
        if len(identity) != _IDENTITY_BYTES:
            raise CodecError(f"{name} has {len(identity)} bytes; expected {_IDENTITY_BYTES}")


def check_range(name: str, value: int, low: int, high: int = INTEGER_MAX) -> None:
    if not low <= value <= high:
        label = f"'{name}'" if name.isidentifier() else name
        raise CodecError(f"{label} is {value}; expected {low} to {high}")


class Frame:
    """The layout of one record type; `fields` are `struct` codes without byte order."""

    __slots__ = ("_header", "_name", "kind", "size", "version")

    def __init__(self, kind: RecordType, fields: str, version: int = VERSION) -> None:
        self.kind = kind
        self.version = version
        self._name = kind.name.lower()
        self._header = struct.Struct(f"<4sBBH16s16s{fields}II")
        self.size = self._header.size
        """Size of the header in bytes, and offset of the payload."""

    def seal(
        self, fingerprint: bytes, deployment: bytes, *fields: bytes | int, payload: bytes = b""
    ) -> bytes:
        if self.size + len(payload) > RECORD_CAP:
            raise OversizedError(
                f"{self.kind.name.lower()} of {self.size + len(payload)} bytes exceeds the "
                f"maximum, {RECORD_CAP}: split it"
            )
        header = self._header.pack(
            MAGIC,
            self.version,
            self.kind,
            self.size,
            fingerprint,
            deployment,
            *fields,
            len(payload),
            0,
        )[:-4]
        checksum = crc32c(payload, crc32c(header))
        return b"".join((header, checksum.to_bytes(4, "little"), payload))

    def open(self, data: bytes) -> tuple[Any, ...]:
        """Validate a record, and return its fields; the payload is `data[size:]`."""
        kind, expected = kind_of(data), self._name
        if kind is not self.kind:
            raise CodecError(f"record has type {kind.name.lower()}; expected {expected}")
        if version_of(data) != self.version:
            raise VersionError(
                f"{expected} has version {version_of(data)}; expected {self.version}"
            )
        if len(data) < self.size:
            raise CodecError(
                f"{expected} of {len(data)} bytes is shorter than its {self.size}-byte header"
            )
        _, _, _, size, *fields, payload_bytes, checksum = self._header.unpack_from(data)
        if size != self.size:
            raise CodecError(f"{expected} has a header of {size} bytes; expected {self.size}")
        if len(data) != size + payload_bytes:
            raise CodecError(
                f"{expected} has {len(data) - size} bytes of payload; the header states "
                f"{payload_bytes}"
            )
        view = memoryview(data)
        if crc32c(view[size:], crc32c(view[: size - 4])) != checksum:
            raise CodecError(f"{expected} is corrupt: checksum mismatch")
        return tuple(fields)
