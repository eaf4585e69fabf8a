"""Envelopes: device reports of one epoch, sent to a collector over HTTP.

A body consists of a header and one or more envelopes of the same size. Integers are little-endian:

======  =====  ========================================================================
offset  bytes  header
======  =====  ========================================================================
0       4      ``dpsd``
4       1      version, 1
5       1      1 if contents are sealed, else 0
6       2      bytes of an envelope
8       16     deployment
24      16     fingerprint
40      8      epoch, from 1
48      8      ID of the key that contents are sealed to, see `sealing`; zeros if not sealed
======  =====  ========================================================================

======  =====  ========================================================================
offset  bytes  envelope
======  =====  ========================================================================
0       16     device: random, drawn when it joins a deployment, then constant
16      16     report: random, drawn with the report, constant in retries
32      1      1: a report that enrolls the device in the horizon; 0: another report;
               2: an enrollment without a report
33      ...    content
======  =====  ========================================================================

The length of a content is independent of the device's values. A content (`ContentFormat`) has the
number of its messages (2 bytes), then slots for as many messages as any report of the job needs.
Unused slots are zero. A sealed content is the ciphertext of such a content
(`dpstream.topics.sealing`), bound to deployment, job, epoch and report. An enrollment has the size
of a report, a random report ID, and no messages.

This module needs only NumPy, because devices use it too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAGIC: Final = b"dpsd"
VERSION: Final = 1
CONTENT_TYPE: Final = "application/vnd.dpstream.reports"
IDENTITY_BYTES: Final = 16
KEY_ID_BYTES: Final = 8
ENVELOPE_OVERHEAD: Final = 2 * IDENTITY_BYTES + 1
ENVELOPE_MAX: Final = 0xFFFF
BODY_MAX: Final = 256 * 1024
"""Maximum size of a body, in bytes; larger bodies are neither written nor read."""

_HEADER = struct.Struct("<4sBBH16s16sQ8s")
HEADER_BYTES: Final = _HEADER.size
_NO_KEY = bytes(KEY_ID_BYTES)
_EPOCH_MAX = 2**63 - 1
_COUNT_TYPE = np.dtype("<u2")
_PURPOSE_OFFSET = 2 * IDENTITY_BYTES
_ENROLLMENT = 2


class EnvelopeError(ValueError):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Envelopes:
    """The envelopes of a request body.

    `key` identifies the key to which contents are sealed (8 bytes), or is None. `rows` is uint8,
    shape (envelopes, bytes per envelope).
    """

    deployment: bytes
    fingerprint: bytes
    epoch: int
    key: bytes | None
    rows: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def devices(self) -> NDArray[np.uint8]:
        """Device IDs, shape (envelopes, 16)."""
        return self.rows[:, :IDENTITY_BYTES]

    @property
    def reports(self) -> NDArray[np.uint8]:
        """Report IDs, shape (envelopes, 16)."""
        return self.rows[:, IDENTITY_BYTES:_PURPOSE_OFFSET]

    @property
    def enrolls(self) -> NDArray[np.bool_]:
        """True for devices without an acknowledged envelope in the horizon."""
        enrolls: NDArray[np.bool_] = self.rows[:, _PURPOSE_OFFSET] >= 1
        return enrolls

    @property
    def has_report(self) -> NDArray[np.bool_]:
        has_report: NDArray[np.bool_] = self.rows[:, _PURPOSE_OFFSET] != _ENROLLMENT
        return has_report

    @property
    def contents(self) -> NDArray[np.uint8]:
        """Sealed or plain contents, shape (envelopes, bytes per content)."""
        return self.rows[:, ENVELOPE_OVERHEAD:]


def encode_envelope(
    device: bytes, report: bytes, enrolls: bool, content: bytes, *, has_report: bool = True
) -> bytes:
    if len(device) != IDENTITY_BYTES or len(report) != IDENTITY_BYTES:
        raise EnvelopeError(f"device or report ID is not {IDENTITY_BYTES} bytes long")
    purpose = int(enrolls) if has_report else _ENROLLMENT
    envelope = b"".join((device, report, bytes([purpose]), content))
    if len(envelope) > ENVELOPE_MAX:
        raise EnvelopeError(
            f"envelope of {len(envelope)} bytes exceeds the maximum, {ENVELOPE_MAX}"
        )
    return envelope


def encode_body(
    deployment: bytes, fingerprint: bytes, epoch: int, key: bytes | None, envelopes: list[bytes]
) -> bytes:
    """Encode a request body of at least one envelope; all envelopes have the same size."""
    size = len(envelopes[0]) if envelopes else 0
    if not envelopes or any(len(envelope) != size for envelope in envelopes):
        raise EnvelopeError("a body requires at least one envelope, all of the same size")
    header = _HEADER.pack(
        MAGIC, VERSION, key is not None, size, deployment, fingerprint, epoch, key or _NO_KEY
    )
    body = b"".join((header, *envelopes))
    if len(body) > BODY_MAX:
        raise EnvelopeError(f"body of {len(body)} bytes exceeds the maximum, {BODY_MAX}")
    return body


def decode_body(data: bytes) -> Envelopes:
    """Decode a body as read-only views; an `EnvelopeError` reveals none of its contents."""
    if len(data) > BODY_MAX:
        raise EnvelopeError(f"body of {len(data)} bytes exceeds the maximum, {BODY_MAX}")
    if len(data) < HEADER_BYTES:
        raise EnvelopeError(
            f"body of {len(data)} bytes is shorter than its {HEADER_BYTES}-byte header"
        )
    magic, version, sealed, size, deployment, fingerprint, epoch, key = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise EnvelopeError(f"body does not start with {MAGIC!r}")
    if version != VERSION:
        raise EnvelopeError(f"body has version {version}; expected {VERSION}")
    if sealed > 1 or (not sealed and key != _NO_KEY):
        raise EnvelopeError(f"sealed flag is {sealed}; expected 1, or 0 without a key ID")
    if not 1 <= epoch <= _EPOCH_MAX:
        raise EnvelopeError(f"epoch is {epoch}; expected 1 to {_EPOCH_MAX}")
    count, rest = divmod(len(data) - HEADER_BYTES, size) if size else (0, 1)
    if rest or not count or size <= ENVELOPE_OVERHEAD:
        raise EnvelopeError(
            f"body has {len(data)} bytes; expected a {HEADER_BYTES}-byte header, then envelopes "
            f"of {size} bytes"
        )
    rows = np.frombuffer(data, np.uint8, offset=HEADER_BYTES).reshape(count, size)
    if rows[:, _PURPOSE_OFFSET].max() > _ENROLLMENT:
        raise EnvelopeError(f"a purpose is out of range; expected 0 to {_ENROLLMENT}")
    return Envelopes(deployment, fingerprint, epoch, key if sealed else None, rows)


@dataclass(frozen=True, slots=True)
class ContentFormat:
    """Format of one device's report: up to `slots` messages of `width` integers each."""

    slots: int
    width: int
    word_bytes: int

    @property
    def size(self) -> int:
        return _COUNT_TYPE.itemsize + self.slots * self.width * self.word_bytes

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype(f"<u{self.word_bytes}")

    @property
    def empty(self) -> bytes:
        return bytes(self.size)

    def pack(self, words: NDArray[np.unsignedinteger]) -> bytes:
        """Pack messages, shape (n, width), into a content, in canonical order."""
        if words.dtype != self.dtype or words.ndim != 2 or words.shape[1] != self.width:
            raise EnvelopeError(
                f"messages are {words.dtype} of shape {words.shape}; expected {self.dtype} of "
                f"shape (n, {self.width})"
            )
        if len(words) > self.slots:
            raise EnvelopeError(f"{len(words)} messages exceed the {self.slots} slots of a report")
        slots = np.zeros((self.slots, self.width), self.dtype)
        slots[: len(words)] = words[np.lexsort(words.T[::-1])]
        return len(words).to_bytes(_COUNT_TYPE.itemsize, "little") + slots.tobytes()

    def unpack(
        self, contents: NDArray[np.uint8]
    ) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16], NDArray[np.bool_]]:
        """Unpack messages from contents, shape (n, `size`).

        Returns slots, shape (n, slots, width); the number of used slots, shape (n,); and the mask
        of well-formed contents, shape (n,), which have zeros in unused slots.
        """
        if contents.ndim != 2 or contents.shape[1] != self.size:
            raise EnvelopeError(
                f"contents have {contents.shape[-1]} bytes; expected {self.size} for this job"
            )
        head = _COUNT_TYPE.itemsize
        counts = np.ascontiguousarray(contents[:, :head]).view(_COUNT_TYPE)[:, 0]
        slots = np.ascontiguousarray(contents[:, head:]).view(self.dtype)
        slots = slots.reshape(len(contents), self.slots, self.width)
        unused = np.arange(self.slots) >= counts[:, None]
        well_formed = (counts <= self.slots) & ~((slots != 0).any(axis=2) & unused).any(axis=1)
        return slots, counts, well_formed
