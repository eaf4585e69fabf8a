"""Manifests: each states the final contents of a window, which determine all later steps.

* The payload starts with a bitmap of the included producers: one bit per producer in the order of
  registration, lowest bit first. A uint32 population for each included producer follows.
* Version 2 is for parallel shufflers. It adds the shuffler and, after the populations, the draw ID
  of each included producer. Shuffler 1 finalizes a window by its first manifest. Every other
  shuffler writes its own manifest, with its topic's offsets, before it writes its chunks.
* Version 3 has the differences from an earlier manifest (`dpstream.topics.short_manifests`).
* `read_head` reads all versions, without populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.batches import DRAWING_BYTES
from dpstream.topics.frames import (
    RECORD_CAP,
    U4_MAX,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
    kind_of,
    version_of,
)
from dpstream.topics.memberships import NumberRow, decode_membership

_MANIFEST = Frame(RecordType.MANIFEST, "QQQQQQQII")
_OF_AN_INSTANCE = Frame(RecordType.MANIFEST, "QQQQQQQIII", version=2)
SHORT = Frame(RecordType.MANIFEST, "QQQQQQQIIQ", version=3)
"""Differences from another manifest, whose offset is the last field."""
_FRAMES = {frame.version: frame for frame in (_MANIFEST, _OF_AN_INSTANCE, SHORT)}
_POPULATION_TYPE = np.dtype("<u4")
_FIELDS = 11
"""Common first fields of all versions: fingerprint, deployment, and those of the first version."""

PRODUCERS_MAX = (RECORD_CAP - _MANIFEST.size) * 8 // (8 * _POPULATION_TYPE.itemsize + 1)
"""Maximum producers of a job, about 63,000: a manifest with all of them fits in a record."""
PRODUCERS_OF_INSTANCES_MAX = (
    (RECORD_CAP - _OF_AN_INSTANCE.size) * 8 // (8 * (_POPULATION_TYPE.itemsize + DRAWING_BYTES) + 1)
)
"""Maximum producers of a job whose manifests contain draw IDs, about 21,000."""


class WindowStatus(StrEnum):
    """Status of a finalized window; no manifest is corrupt, which is detected when summing."""

    RELEASED = "released"
    SUPPRESSED = "suppressed"
    EMPTY = "empty"
    CORRUPT = "corrupt"


_STATUS_CODES = {WindowStatus.RELEASED: 1, WindowStatus.SUPPRESSED: 2, WindowStatus.EMPTY: 3}
_STATUSES = {code: window_status for window_status, code in _STATUS_CODES.items()}
MANIFEST_STATUSES = tuple(_STATUS_CODES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Finalization of an epoch's window; the first manifest of an epoch in the log counts.

    Attributes:
        window_status: `EMPTY` if and only if there are no contributors.
        first_offset: Offset of the epoch's first record in the raw topic.
        cut_offset: First offset after the window.
        first_epoch: Smallest epoch of the deployment, at least 1.
        producers: Whether each producer is included, in order of registration; stored as a
            `NumberRow`, like `populations`.
        populations: Devices enrolled with each included producer, in the same order, uint32.
        contributors: Number of devices that were present with the included producers.
        population: Number of devices enrolled with all producers, included or not.
        timestamp: Milliseconds since 1970, UTC.
        instance: Parallel shuffler that wrote the manifest, from 1; shuffler 1 finalizes windows.
        drawings: With parallel shufflers, the draw ID (`batches.batch_id`) of each included
            producer.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    window_status: WindowStatus
    first_offset: int
    cut_offset: int
    first_epoch: int
    producers: Sequence[bool]
    populations: Sequence[int]
    contributors: int
    population: int
    timestamp: int
    instance: int = 1
    drawings: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("first_epoch", self.first_epoch, 1)
        check_range("epoch", self.epoch, self.first_epoch)
        check_range("first_offset", self.first_offset, 0)
        check_range("cut_offset", self.cut_offset, self.first_offset)
        check_range("timestamp", self.timestamp, 0)
        check_range("number of producers", len(self.producers), 0, PRODUCERS_MAX)
        inside = np.asarray(self.producers, np.bool_)
        included = int(np.count_nonzero(inside))
        if len(self.populations) != included:
            raise CodecError(
                f"got {len(self.populations)} populations for {included} included producers; "
                "expected one each"
            )
        populations = _checked_populations(self.populations)
        for name, array in (("producers", inside), ("populations", populations)):
            # An object shared by several manifests stays shared.
            if not isinstance(getattr(self, name), NumberRow):
                object.__setattr__(self, name, NumberRow(array))
        enrolled = int(populations.sum(dtype=np.uint64))
        check_range("population", self.population, enrolled)
        check_range("contributors", self.contributors, 0, enrolled)
        if (self.window_status is WindowStatus.EMPTY) != (self.contributors == 0):
            raise CodecError(
                f"a window with {self.contributors} contributors cannot be {self.window_status}"
            )
        check_range("instance", self.instance, 1, U4_MAX)
        if self.drawings and len(self.drawings) != included:
            raise CodecError(
                f"got {len(self.drawings)} draw IDs for {included} included producers; expected "
                "one each"
            )
        if self.instance > 1 and len(self.drawings) != included:
            raise CodecError(f"manifest of shuffler {self.instance} has no draw IDs")
        if any(len(drawing) != DRAWING_BYTES for drawing in self.drawings):
            raise CodecError(f"a draw ID has the wrong size; expected {DRAWING_BYTES} bytes")
        if self.window_status not in _STATUS_CODES:
            raise CodecError(
                f"window status is {self.window_status}; expected one of: "
                f"{', '.join(_STATUS_CODES)}"
            )

    @property
    def of_instances(self) -> bool:
        """True if any field is specific to parallel shufflers."""
        return self.instance > 1 or bool(self.drawings)


def _checked_populations(given: Sequence[int]) -> NDArray[np.uint32]:
    if not isinstance(given, NumberRow | np.ndarray):
        low, high = min(given, default=0), max(given, default=0)
    elif len(array := np.asarray(given)):
        low, high = int(array.min()), int(array.max())
    else:
        low = high = 0
    check_range("smallest population", low, 0)
    check_range("largest population", high, 0, U4_MAX)
    return np.asarray(given, _POPULATION_TYPE)


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """Fields that are read without populations; `bits` are in order of registration."""

    fingerprint: bytes
    deployment: bytes
    epoch: int
    window_status: WindowStatus
    contributors: int
    instance: int
    bits: bytes

    def has(self, index: int) -> bool:
        return has_bit(self.bits, index)


def has_bit(bits: bytes, index: int) -> bool:
    """Return a bit of a bitmap, lowest bit first; bits beyond its end are not set."""
    return index >> 3 < len(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


def numbers_of(manifest: Manifest) -> tuple[int, ...]:
    return (
        manifest.epoch,
        manifest.first_offset,
        manifest.cut_offset,
        manifest.first_epoch,
        manifest.contributors,
        manifest.population,
        manifest.timestamp,
        _STATUS_CODES[manifest.window_status],
        len(manifest.producers),
    )


def manifest_of(
    header: Sequence[Any],
    producers: Sequence[bool] | NDArray[np.bool_],
    populations: Sequence[int] | NDArray[np.integer],
    instance: int = 1,
    drawings: tuple[bytes, ...] = (),
) -> Manifest:
    """Create a manifest from `header`: fingerprint, deployment, and the fields of `numbers_of`."""
    (
        fingerprint,
        deployment,
        epoch,
        first_offset,
        cut_offset,
        first_epoch,
        contributors,
        population,
        timestamp,
        window_status,
        _,
    ) = header
    return Manifest(
        fingerprint,
        deployment,
        epoch,
        _window_status(window_status),
        first_offset,
        cut_offset,
        first_epoch,
        cast(Sequence[bool], producers),
        cast(Sequence[int], populations),
        contributors,
        population,
        timestamp,
        instance,
        drawings,
    )


def encode_manifest(manifest: Manifest) -> bytes:
    bitmap = np.packbits(np.asarray(manifest.producers, np.bool_), bitorder="little")
    populations = np.asarray(manifest.populations, _POPULATION_TYPE)
    identity = manifest.fingerprint, manifest.deployment
    numbers = numbers_of(manifest)
    payload = bitmap.tobytes() + populations.tobytes()
    if not manifest.of_instances:
        return _MANIFEST.seal(*identity, *numbers, payload=payload)
    payload += b"".join(manifest.drawings)
    return _OF_AN_INSTANCE.seal(*identity, *numbers, manifest.instance, payload=payload)


def read_head(data: bytes) -> ManifestHead:
    """Read the head of a manifest; all other fields are checked only by the checksum."""
    frame = _frame_of(data)
    fields = frame.open(data)
    fingerprint, deployment, epoch, _, _, _, contributors, _, _, window_status, producers = fields[
        :_FIELDS
    ]
    check_range("number of producers", producers, 0, PRODUCERS_MAX)
    if frame is SHORT:
        inside, _ = decode_membership(data[frame.size :], producers)
        bits = np.packbits(inside, bitorder="little").tobytes()
    else:
        bits = data[frame.size : frame.size + (producers + 7) // 8]
    instance = fields[_FIELDS] if frame is _OF_AN_INSTANCE else 1
    return ManifestHead(
        fingerprint, deployment, epoch, _window_status(window_status), contributors, instance, bits
    )


def is_short(data: bytes) -> bool:
    return kind_of(data) is RecordType.MANIFEST and version_of(data) == SHORT.version


def decode_manifest(data: bytes) -> Manifest:
    frame = _frame_of(data)
    if frame is SHORT:
        raise CodecError(
            "manifest is incomplete: it contains the differences from the manifest at offset "
            f"{SHORT.open(data)[-1]}"
        )
    fields = frame.open(data)
    header = fields[:_FIELDS]
    payload, drawings, instance = data[frame.size :], b"", 1
    if frame is _OF_AN_INSTANCE:
        instance = fields[_FIELDS]
        payload, drawings = _without_drawings(payload, header[-1])
    included, populations = _unpack_producers(payload, header[-1])
    manifest = manifest_of(
        header,
        included,
        populations,
        instance,
        tuple(
            drawings[start : start + DRAWING_BYTES]
            for start in range(0, len(drawings), DRAWING_BYTES)
        ),
    )
    if frame is _OF_AN_INSTANCE and not manifest.of_instances:
        raise CodecError("manifest of version 2 has no shuffler or draw IDs; expected version 1")
    return manifest


def _frame_of(data: bytes) -> Frame:
    # The frame of the first version rejects a record of another type.
    version = version_of(data) if kind_of(data) is RecordType.MANIFEST else _MANIFEST.version
    return _FRAMES[version]


def _window_status(code: int) -> WindowStatus:
    if code not in _STATUSES:
        raise CodecError(
            f"manifest has unknown window status {code}; expected 1 to {len(_STATUSES)}"
        )
    return _STATUSES[code]


def _without_drawings(payload: bytes, producers: int) -> tuple[bytes, bytes]:
    of_one = _POPULATION_TYPE.itemsize + DRAWING_BYTES
    included = max(0, len(payload) - (producers + 7) // 8) // of_one
    end = len(payload) - included * DRAWING_BYTES
    return payload[:end], payload[end:]


# Consecutive windows usually have the same producers and populations: one cached object.
@lru_cache(maxsize=1)
def _unpack_producers(payload: bytes, producers: int) -> tuple[NumberRow[bool], NumberRow[int]]:
    check_range("number of producers", producers, 0, PRODUCERS_MAX)
    bitmap_bytes = (producers + 7) // 8
    if bitmap_bytes > len(payload):
        raise CodecError(
            f"payload has {len(payload)} bytes; the bitmap of {producers} producers requires "
            f"{bitmap_bytes}"
        )
    bits = np.unpackbits(np.frombuffer(payload[:bitmap_bytes], np.uint8), bitorder="little")
    if bits[producers:].any():
        raise CodecError(f"the bitmap includes more than {producers} producers")
    included, found = int(np.count_nonzero(bits)), len(payload) - bitmap_bytes
    if found != included * _POPULATION_TYPE.itemsize:
        raise CodecError(
            f"populations have {found} bytes; {included} included producers require "
            f"{included * _POPULATION_TYPE.itemsize}"
        )
    populations = np.frombuffer(payload[bitmap_bytes:], _POPULATION_TYPE)
    return NumberRow[bool](bits[:producers].view(np.bool_)), NumberRow[int](populations)
