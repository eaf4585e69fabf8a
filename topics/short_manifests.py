"""Short manifests: differences from an earlier manifest, for many producers.

A producer's number of devices seldom changes. A manifest of version 3 therefore contains the
included producers (`dpstream.topics.memberships`), and the population changes since a base
manifest: a whole one, identified by its offset in the log. Each change is a pair of numbers. The
first counts the included producers since the previous change. The second encodes the difference n:
2n, or -2n - 1 for n below 0.

A reader stores the last `BASES` whole manifests of its deployment. So whether a manifest is
readable depends only on the log.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.frames import U4_MAX, CodecError, check_range
from dpstream.topics.manifests import (
    PRODUCERS_MAX,
    SHORT,
    Manifest,
    decode_manifest,
    encode_manifest,
    is_short,
    manifest_of,
    numbers_of,
)
from dpstream.topics.memberships import (
    decode_membership,
    decode_number,
    encode_membership,
    encode_number,
)

BASES = 64
"""Number of whole manifests whose populations a reader stores."""

SHARE = 32
"""Minimum ratio of a whole manifest's size to that of the changes in a short manifest."""


class ManifestReader:
    """Read and encode manifests; short ones refer to one of the last `bases` whole ones."""

    def __init__(self, fingerprint: bytes, deployment: bytes, bases: int = BASES) -> None:
        self._identity = fingerprint, deployment
        self._bases = bases
        self._tables: dict[int, NDArray[np.uint32]] = {}

    @property
    def bases(self) -> tuple[int, ...]:
        """Offsets of the whole manifests whose populations are stored, ascending."""
        return tuple(sorted(self._tables))

    def decode(self, offset: int, record: bytes) -> Manifest:
        """Decode a manifest; raise `CodecError` if its base is not among the last whole ones."""
        if is_short(record):
            return self._decode_short(record)
        manifest = decode_manifest(record)
        if (manifest.fingerprint, manifest.deployment) == self._identity:
            self._keep(offset, manifest)
        return manifest

    def encode(self, manifest: Manifest) -> bytes:
        """Encode the next manifest: whole if it differs too much from the last whole one."""
        whole = encode_manifest(manifest)
        if not self._tables or manifest.of_instances:
            return whole
        base = max(self._tables)
        inside = np.asarray(manifest.producers, np.bool_)
        earlier = _first(self._tables[base], len(inside))[inside]
        changes = np.asarray(manifest.populations, np.int64) - earlier
        # A change takes at least two bytes.
        if 2 * np.count_nonzero(changes) * SHARE > len(whole):
            return whole
        changed = _encode_changes(changes)
        payload = encode_membership(inside) + changed
        if SHARE * len(changed) > len(whole) or SHORT.size + len(payload) >= len(whole):
            return whole
        return SHORT.seal(*self._identity, *numbers_of(manifest), base, payload=payload)

    def _decode_short(self, record: bytes) -> Manifest:
        *header, base = SHORT.open(record)
        payload, producers = record[SHORT.size :], header[-1]
        if tuple(header[:2]) != self._identity or base not in self._tables:
            raise CodecError(
                f"manifest contains only the differences from the manifest at offset {base}, "
                f"which is not among the last {BASES} complete manifests of the deployment"
            )
        check_range("number of producers", producers, 0, PRODUCERS_MAX)
        inside, end = decode_membership(payload, producers)
        earlier = _first(self._tables[base], producers)[inside]
        populations = earlier + _decode_changes(payload[end:], len(earlier))
        if populations.size and not 0 <= populations.min() <= populations.max() <= U4_MAX:
            raise CodecError(f"a population is out of range; expected 0 to {U4_MAX}")
        return manifest_of(header, inside, populations)

    def _keep(self, offset: int, manifest: Manifest) -> None:
        if manifest.of_instances or not self._bases:
            return
        table = np.zeros(len(manifest.producers), np.uint32)
        inside = np.asarray(manifest.producers, np.bool_)
        table[inside] = np.asarray(manifest.populations, np.uint32)
        self._tables[offset] = table
        if len(self._tables) > self._bases:
            del self._tables[min(self._tables)]


def base_of(record: bytes) -> int | None:
    return int(SHORT.open(record)[-1]) if is_short(record) else None


def _first(table: NDArray[np.uint32], producers: int) -> NDArray[np.int64]:
    """Return populations of the first producers; 0 for those that registered later."""
    known = table[:producers].astype(np.int64)
    return np.pad(known, (0, producers - len(known)))


def _encode_changes(changes: NDArray[np.int64]) -> bytes:
    places = np.flatnonzero(changes).tolist()
    return b"".join(
        encode_number(place - before - 1) + encode_number(_unsigned(int(changes[place])))
        for before, place in pairwise([-1, *places])
    )


def _decode_changes(payload: bytes, producers: int) -> NDArray[np.int64]:
    changes, place, position = np.zeros(producers, np.int64), -1, 0
    while position < len(payload):
        between, position = decode_number(payload, position)
        change, position = decode_number(payload, position)
        place += 1 + between
        if place >= producers or not change:
            raise CodecError(
                f"included producer {place} has change {change}; expected a nonzero change "
                f"for a producer from 0 to {producers - 1}"
            )
        changes[place] = change >> 1 if change & 1 == 0 else -(change >> 1) - 1
    return changes


def _unsigned(change: int) -> int:
    return 2 * change if change >= 0 else -2 * change - 1
