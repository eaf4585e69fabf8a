"""Read many similar manifests from a log in bulk.

Nearly all manifests of a long-lived job are similar: version 1, with the same number of producers,
and the same producers included. Here the checks of `decode_manifest` are applied to all of them
together, in a tenth of the time. Manifests with over `PRODUCERS` producers are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from dpstream.topics.frames import INTEGER_MAX, CodecError
from dpstream.topics.manifests import (
    MANIFEST_STATUSES,
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
)

PRODUCERS = 256
"""Number of producers above which manifests are read one by one."""

# The fields of version 1 that differ between similar manifests, in their order.
_FIELDS = np.dtype(
    [
        ("opening", "S40"),
        ("epoch", "<u8"),
        ("first_offset", "<u8"),
        ("cut_offset", "<u8"),
        ("first_epoch", "<u8"),
        ("contributors", "<u8"),
        ("population", "<u8"),
        ("timestamp", "<u8"),
        ("window_status", "<u4"),
        ("producers", "<u4"),
        ("payload", "<u4"),
        ("checksum", "<u4"),
    ]
)
_NUMBERS = _FIELDS.names[1:8] if _FIELDS.names else ()
_EMPTY = 1 + MANIFEST_STATUSES.index(WindowStatus.EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class ManifestRows:
    """Manifests that include the same producers.

    `first_offsets` has the offset of each epoch's first record in the raw topic, and `cut_offsets`
    the first offset after each window. `statuses` are indices in `MANIFEST_STATUSES`.
    """

    records: Sequence[bytes]
    epochs: NDArray[np.int64]
    first_offsets: NDArray[np.int64]
    cut_offsets: NDArray[np.int64]
    statuses: NDArray[np.int64]

    def manifest(self, row: int) -> Manifest:
        return decode_manifest(self.records[row])


def read_rows(records: Sequence[bytes]) -> ManifestRows | None:
    """Read similar manifests together; return None if one is invalid or not similar."""
    first, size = _first_of(records), len(records[0])
    if first is None or any(len(record) != size for record in records):
        return None
    table = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
    fields = table[:, : _FIELDS.itemsize].copy().view(_FIELDS)[:, 0]
    payloads = table[:, _FIELDS.itemsize :]
    bitmap = (len(first.producers) + 7) // 8
    alike = (
        (fields["opening"] == fields["opening"][0]).all()
        and (fields["producers"] == fields["producers"][0]).all()
        and (fields["payload"] == fields["payload"][0]).all()
        and (payloads[:, :bitmap] == payloads[0, :bitmap]).all()
    )
    if not alike or any(fields[name].max() > INTEGER_MAX for name in _NUMBERS):
        return None
    populations = payloads[:, bitmap:].copy().view("<u4")
    enrolled = populations.sum(axis=1, dtype=np.uint64)
    statuses, contributors = fields["window_status"], fields["contributors"]
    right = (
        (fields["first_epoch"] >= 1)
        & (fields["epoch"] >= fields["first_epoch"])
        & (fields["cut_offset"] >= fields["first_offset"])
        & (fields["population"] >= enrolled)
        & (contributors <= enrolled)
        & (statuses >= 1)
        & (statuses <= len(MANIFEST_STATUSES))
        & ((statuses == _EMPTY) == (contributors == 0))
    )
    if not right.all() or not all(map(_undamaged, records, fields["checksum"].tolist())):
        return None
    return ManifestRows(
        records,
        fields["epoch"].astype(np.int64),
        fields["first_offset"].astype(np.int64),
        fields["cut_offset"].astype(np.int64),
        statuses.astype(np.int64) - 1,
    )


def membership_of(record: bytes) -> tuple[int, bytes]:
    """Return the length and the bitmap of producers that similar manifests share."""
    producers = int.from_bytes(record[_PRODUCERS_AT : _PRODUCERS_AT + 4], "little")
    bitmap = (producers + 7) // 8 if producers <= PRODUCERS else 0
    return len(record), record[_FIELDS.itemsize : _FIELDS.itemsize + bitmap]


_PRODUCERS_AT = _FIELDS.itemsize - 12


def _first_of(records: Sequence[bytes]) -> Manifest | None:
    """Return the first manifest, or None if `read_rows` does not support it."""
    try:
        manifest = decode_manifest(records[0])
    except CodecError:
        return None
    if manifest.of_instances or len(manifest.producers) > PRODUCERS:
        return None
    # Another version has other fields and would be encoded differently.
    return manifest if encode_manifest(manifest) == records[0] else None


def _undamaged(record: bytes, checksum: int) -> bool:
    end = _FIELDS.itemsize
    return crc32c(record[end:], crc32c(record[: end - 4])) == checksum
