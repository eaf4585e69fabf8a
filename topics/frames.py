"""What all binary records have in common: a fixed header, a checksum, and caps.

Every version of a kind of record has one header, always of the same length and little-endian:
magic, version, kind, header length, fingerprint, deployment, the fields of the kind, payload
length, checksum. The payload follows and ends the record. The checksum is a CRC-32C of all other
bytes.

A record has one spelling: whatever decodes encodes back to the same bytes. The magic does not begin
with 0, so that a record is never taken for one of a schema registry, whose first byte is 0.
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
"""Bytes of an encoded record that a writer aims at."""
RECORD_CAP = 256 * 1024
"""Bytes of an encoded record beyond which it is neither written nor looked at."""
PAYLOAD_TARGET = RECORD_TARGET - 128
"""Bytes of a payload that a writer aims at: with any of the headers, within `RECORD_TARGET`."""
MESSAGES_CAP = 2**40
"""Messages that one record can stand for."""
U4_MAX = 2**32 - 1
INTEGER_MAX = 2**63 - 1
"""Largest epoch, offset or number of devices: what still fits a signed 64-bit integer."""

_IDENTITY_BYTES = 16
_OPENING = struct.Struct("<4sBB")


class CodecError(ValueError):
    """A record is not of the form described here; the message says in what way."""


class OversizedError(CodecError):
    """A record is larger than the cap, whatever it holds."""


class VersionError(CodecError):
    """A record is of a version of the format that this program does not understand."""


class RecordType(IntEnum):
    """What a binary record is."""

    BATCH = 1
    PUNCTUATION = 2
    MANIFEST = 3
    CHUNK = 4
    PARTIAL = 5
    SEALED_BATCH = 6
    LOOSE_BATCH = 7
    ENROLMENTS = 8
    WATERMARK = 9


_KINDS: Mapping[int, RecordType] = {kind.value: kind for kind in RecordType}
# Of kinds that have more than one version.
_NEWEST: Mapping[int, int] = {RecordType.MANIFEST: 3, RecordType.CHUNK: 2}


def kind_of(data: bytes) -> RecordType:
    """What a record claims to be. Looks at its first six bytes; the rest may still be wrong.

    Raises:
        OversizedError: it is larger than `RECORD_CAP`.
        VersionError: its version is not understood.
        CodecError: it is none of ours.
    """
    if len(data) > RECORD_CAP:
        raise OversizedError(f"record of {len(data)} bytes, at most {RECORD_CAP} are allowed")
    if len(data) < _OPENING.size:
        raise CodecError(f"record of {len(data)} bytes is too short to be one of ours")
    magic, version, kind = _OPENING.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"record begins with {magic.hex()}, not with {MAGIC.hex()} ({MAGIC!r})")
    newest = _NEWEST.get(kind, VERSION)
    if not VERSION <= version <= newest:
        known = f"{VERSION} only" if newest == VERSION else f"{VERSION} to {newest}"
        raise VersionError(f"record of version {version}, this program understands {known}")
    known_kind = _KINDS.get(kind)
    if known_kind is None:
        raise CodecError(f"record of unknown kind {kind}, known are 1 to {len(RecordType)}")
    return known_kind


def version_of(data: bytes) -> int:
    """The version of a record that `kind_of` takes for one of ours."""
    return data[len(MAGIC)]


def check_identities(**identities: bytes) -> None:
    """Refuse fingerprints, deployments and ids that are not 16 bytes long."""
    for name, identity in identities.items():
        if len(identity) != _IDENTITY_BYTES:
            raise CodecError(f"{name} has {len(identity)} bytes, must have {_IDENTITY_BYTES}")


def check_range(name: str, value: int, low: int, high: int = INTEGER_MAX) -> None:
    """Refuse an integer outside `low` to `high`, both included."""
    if not low <= value <= high:
        raise CodecError(f"{name} is {value}, must be {low} to {high}")


class Frame:
    """The layout of one kind of record.

    Args:
        kind: which one.
        fields: `struct` codes of its own header fields, without byte order.
        version: of this layout.
    """

    __slots__ = ("_header", "_name", "kind", "size", "version")

    def __init__(self, kind: RecordType, fields: str, version: int = VERSION) -> None:
        self.kind = kind
        self.version = version
        self._name = kind.name.lower()
        self._header = struct.Struct(f"<4sBBH16s16s{fields}II")
        self.size = self._header.size
        """Bytes of the header, and where the payload begins."""

    def seal(
        self, fingerprint: bytes, deployment: bytes, *fields: bytes | int, payload: bytes = b""
    ) -> bytes:
        """The encoded record.

        Raises:
            OversizedError: it would be larger than `RECORD_CAP`.
        """
        if self.size + len(payload) > RECORD_CAP:
            raise OversizedError(
                f"{self.kind.name.lower()} of {self.size + len(payload)} bytes, "
                f"at most {RECORD_CAP} are allowed: write it in parts"
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
        """Fingerprint, deployment and the kind's own fields; the payload is `data[size:]`.

        Raises:
            CodecError: it is not a whole and undamaged record of this kind.
        """
        kind, wanted = kind_of(data), self._name
        if kind is not self.kind:
            raise CodecError(f"record is a {kind.name.lower()}, expected a {wanted}")
        if version_of(data) != self.version:
            raise VersionError(
                f"{wanted} of version {version_of(data)}, expected version {self.version}"
            )
        if len(data) < self.size:
            raise CodecError(
                f"{wanted} of {len(data)} bytes ends within its {self.size}-byte header"
            )
        _, _, _, size, *fields, payload_bytes, checksum = self._header.unpack_from(data)
        if size != self.size:
            raise CodecError(f"{wanted} with a header of {size} bytes, must have {self.size}")
        if len(data) != size + payload_bytes:
            raise CodecError(
                f"{wanted} with {len(data) - size} bytes of payload, "
                f"its header says {payload_bytes}"
            )
        view = memoryview(data)
        if crc32c(view[size:], crc32c(view[: size - 4])) != checksum:
            raise CodecError(f"{wanted} is damaged: its checksum does not match")
        return tuple(fields)
