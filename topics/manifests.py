"""What a window holds: the decision that makes everything after it a deterministic function.

The payload is a bitmap of the producers in, one bit each in the order of registration (lowest bit
first), and then a u4 population for each of them that is in.

Where shuffle instances work side by side, version 2 also says of which instance it is, and names
the drawing of each producer that is in, after the populations. The first instance decides, and its
first manifest is the only decision; each of the others writes one of its own, with the offsets of
its own topic, before it writes its part.

Version 3 says what differs from an earlier manifest (`dpstream.topics.short_manifests`). Whoever
reads no populations reads all versions alike: `read_head`.
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
"""Its last field is the offset of the manifest that it says the differences from."""
_FRAMES = {frame.version: frame for frame in (_MANIFEST, _OF_AN_INSTANCE, SHORT)}
_POPULATION_TYPE = np.dtype("<u4")
_FIELDS = 11
"""That all versions begin with: fingerprint, deployment, and those of the first version."""

PRODUCERS_MAX = (RECORD_CAP - _MANIFEST.size) * 8 // (8 * _POPULATION_TYPE.itemsize + 1)
"""Producers of a job, about 63,000: a manifest with all of them in still fits a record."""
PRODUCERS_OF_INSTANCES_MAX = (
    (RECORD_CAP - _OF_AN_INSTANCE.size) * 8 // (8 * (_POPULATION_TYPE.itemsize + DRAWING_BYTES) + 1)
)
"""The same where manifests name drawings, about 21,000."""


class Fate(StrEnum):
    """What becomes of an epoch.

    No manifest says that a window is spoiled: that shows when what was released is added up.
    """

    RELEASED = "released"
    TOO_SMALL = "too small"
    EMPTY = "empty"
    SPOILED = "spoiled"


_FATE_CODES = {Fate.RELEASED: 1, Fate.TOO_SMALL: 2, Fate.EMPTY: 3}
_FATES = {code: fate for fate, code in _FATE_CODES.items()}
DECIDED_FATES = tuple(_FATE_CODES)
"""Those that a manifest can say."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The decision on one epoch; the first one in the log counts.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: at least `first_epoch`.
        fate: empty exactly when there is no contributor.
        first_offset: of the epoch's first record in the raw topic.
        cut_offset: first offset that no longer belongs to the window.
        first_epoch: the smallest epoch of the deployment, at least 1.
        producers: whether each is in, in order of registration; at most `PRODUCERS_MAX`. Given as
            any sequence or array, as are populations, and held as a `NumberRow`.
        populations: devices enrolled with each producer that is in, in the same order, u4.
        contributors: devices that were present with the producers in.
        population: devices enrolled with all producers, in or not.
        timestamp: milliseconds since 1970, UTC.
        instance: of the shuffle stage, from 1 on; the first one decides.
        drawings: where there are several instances, of each producer that is in, in the same order:
            8 bytes, see `dpstream.topics.batches.batch_id`; elsewhere none.

    Raises:
        CodecError: a field has another length, lies outside its range or contradicts another.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    fate: Fate
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
            raise CodecError(f"{len(self.populations)} populations for {included} producers in")
        populations = _checked_populations(self.populations)
        for name, array in (("producers", inside), ("populations", populations)):
            # What was read as one object stays one.
            if not isinstance(getattr(self, name), NumberRow):
                object.__setattr__(self, name, NumberRow(array))
        enrolled = int(populations.sum(dtype=np.uint64))
        check_range("population", self.population, enrolled)
        check_range("contributors", self.contributors, 0, enrolled)
        if (self.fate is Fate.EMPTY) != (self.contributors == 0):
            raise CodecError(f"a window with {self.contributors} contributors is not {self.fate}")
        check_range("instance", self.instance, 1, U4_MAX)
        if self.drawings and len(self.drawings) != included:
            raise CodecError(f"{len(self.drawings)} drawings for {included} producers in")
        if self.instance > 1 and len(self.drawings) != included:
            raise CodecError(f"instance {self.instance} does not name the drawings that are in")
        if any(len(drawing) != DRAWING_BYTES for drawing in self.drawings):
            raise CodecError(f"a drawing has not {DRAWING_BYTES} bytes")
        if self.fate not in _FATE_CODES:
            raise CodecError(f"no window is decided to be {self.fate}")

    @property
    def of_instances(self) -> bool:
        """Whether it says anything that is said of instances alone."""
        return self.instance > 1 or bool(self.drawings)


def _checked_populations(given: Sequence[int]) -> NDArray[np.uint32]:
    """Populations as they are written; `CodecError` if one has no room."""
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
    """What a manifest says beside populations and drawings, and is read without any of them.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: of the window.
        fate: of the window.
        contributors: devices that were present with the producers in.
        instance: of the shuffle stage, from 1 on.
        bits: whether each producer is in, in order of registration, lowest bit first.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    fate: Fate
    contributors: int
    instance: int
    bits: bytes

    def has(self, index: int) -> bool:
        """Whether a producer is in, by its place in the order of registration."""
        return has_bit(self.bits, index)


def has_bit(bits: bytes, index: int) -> bool:
    """One of a row of bits, lowest first; those beyond its end are not set."""
    return index >> 3 < len(bits) and bool(bits[index >> 3] >> (index & 7) & 1)


def numbers_of(manifest: Manifest) -> tuple[int, ...]:
    """The fields that follow on fingerprint and deployment in all versions."""
    return (
        manifest.epoch,
        manifest.first_offset,
        manifest.cut_offset,
        manifest.first_epoch,
        manifest.contributors,
        manifest.population,
        manifest.timestamp,
        _FATE_CODES[manifest.fate],
        len(manifest.producers),
    )


def manifest_of(
    header: Sequence[Any],
    producers: Sequence[bool] | NDArray[np.bool_],
    populations: Sequence[int] | NDArray[np.integer],
    instance: int = 1,
    drawings: tuple[bytes, ...] = (),
) -> Manifest:
    """A manifest.

    Args:
        header: fingerprint, deployment, and the fields that `numbers_of` names.
        producers: whether each is in.
        populations: of those that are.
        instance: of the shuffle stage.
        drawings: of those that are in, where there are several instances.
    """
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
        fate,
        _,
    ) = header
    return Manifest(
        fingerprint,
        deployment,
        epoch,
        _fate(fate),
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
    """The record of a manifest that is read by itself."""
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
    """What a record says first of all; the rest of it may still be wrong.

    Raises:
        CodecError: the record is no manifest, or its checksum does not match.
    """
    frame = _frame_of(data)
    fields = frame.open(data)
    fingerprint, deployment, epoch, _, _, _, contributors, _, _, fate, producers = fields[:_FIELDS]
    check_range("number of producers", producers, 0, PRODUCERS_MAX)
    if frame is SHORT:
        inside, _ = decode_membership(data[frame.size :], producers)
        bits = np.packbits(inside, bitorder="little").tobytes()
    else:
        bits = data[frame.size : frame.size + (producers + 7) // 8]
    instance = fields[_FIELDS] if frame is _OF_AN_INSTANCE else 1
    return ManifestHead(fingerprint, deployment, epoch, _fate(fate), contributors, instance, bits)


def is_short(data: bytes) -> bool:
    """Whether a record says what differs from an earlier manifest.

    Raises:
        CodecError: it is none of ours.
    """
    return kind_of(data) is RecordType.MANIFEST and version_of(data) == SHORT.version


def decode_manifest(data: bytes) -> Manifest:
    """The manifest of a record that is read by itself.

    Raises:
        CodecError: the record is not a valid manifest, or says what differs from an earlier one.
    """
    frame = _frame_of(data)
    if frame is SHORT:
        raise CodecError(
            f"manifest that says what differs from the one at offset {SHORT.open(data)[-1]}"
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
        raise CodecError("a manifest of version 2 that says nothing of instances")
    return manifest


def _frame_of(data: bytes) -> Frame:
    # Of another kind: the first version's frame refuses it.
    version = version_of(data) if kind_of(data) is RecordType.MANIFEST else _MANIFEST.version
    return _FRAMES[version]


def _fate(code: int) -> Fate:
    if code not in _FATES:
        raise CodecError(f"manifest of unknown fate {code}, known are 1 to {len(_FATES)}")
    return _FATES[code]


def _without_drawings(payload: bytes, producers: int) -> tuple[bytes, bytes]:
    """Bitmap and populations of a payload, and the drawings after them."""
    of_one = _POPULATION_TYPE.itemsize + DRAWING_BYTES
    included = max(0, len(payload) - (producers + 7) // 8) // of_one
    end = len(payload) - included * DRAWING_BYTES
    return payload[:end], payload[end:]


# Mostly the same are in as in the window before, with as many devices: these are then one object.
@lru_cache(maxsize=1)
def _unpack_producers(payload: bytes, producers: int) -> tuple[NumberRow[bool], NumberRow[int]]:
    check_range("number of producers", producers, 0, PRODUCERS_MAX)
    bitmap_bytes = (producers + 7) // 8
    if bitmap_bytes > len(payload):
        raise CodecError(
            f"payload of {len(payload)} bytes, the bitmap of {producers} producers "
            f"needs {bitmap_bytes}"
        )
    bits = np.unpackbits(np.frombuffer(payload[:bitmap_bytes], np.uint8), bitorder="little")
    if bits[producers:].any():
        raise CodecError(f"the bitmap names more than the {producers} producers it is of")
    included, found = int(np.count_nonzero(bits)), len(payload) - bitmap_bytes
    if found != included * _POPULATION_TYPE.itemsize:
        raise CodecError(
            f"{found} bytes of populations, {included} included producers need "
            f"{included * _POPULATION_TYPE.itemsize}"
        )
    populations = np.frombuffer(payload[bitmap_bytes:], _POPULATION_TYPE)
    return NumberRow[bool](bits[:producers].view(np.bool_)), NumberRow[int](populations)
