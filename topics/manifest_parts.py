"""Where a part of a window lies that is decided elsewhere.

Of a window that is written in parts, by shuffle instances side by side or lane by lane, the first
part's manifest is the decision. Whoever writes another one first says in the same log where that
lies in its own topic or partition. Version 2 of a manifest says this with a copy of the decision;
version 5, which is described here, names the decision by its offset.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.frames import (
    U4_MAX,
    CodecError,
    Frame,
    Kind,
    check_identities,
    check_range,
    kind_of,
    version_of,
)

PART = Frame(Kind.MANIFEST, "QQQQIQ", version=5)


@dataclass(frozen=True, slots=True)
class Part:
    """What is said of a part that is not the first.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: at least 1.
        first_offset: of the part's first record in the raw topic of the part.
        cut_offset: first offset that no longer belongs to it.
        timestamp: milliseconds since 1970, UTC.
        instance: of the shuffle stage, or lane; at least 2.
        decision: offset of the manifest that decides the window.

    Raises:
        CodecError: a field has another length, or lies outside its range.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    first_offset: int
    cut_offset: int
    timestamp: int
    instance: int
    decision: int

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        check_range("first_offset", self.first_offset, 0)
        check_range("cut_offset", self.cut_offset, self.first_offset)
        check_range("timestamp", self.timestamp, 0)
        check_range("instance", self.instance, 2, U4_MAX)
        check_range("decision", self.decision, 0)


def encode_part(part: Part) -> bytes:
    """The record of a part."""
    return PART.seal(
        part.fingerprint,
        part.deployment,
        part.epoch,
        part.first_offset,
        part.cut_offset,
        part.timestamp,
        part.instance,
        part.decision,
    )


def is_part(data: bytes) -> bool:
    """Whether a record says where a part lies that is decided elsewhere.

    Raises:
        CodecError: it is none of ours.
    """
    return kind_of(data) is Kind.MANIFEST and version_of(data) == PART.version


def decode_part(data: bytes) -> Part:
    """The part of a record.

    Raises:
        CodecError: the record is not a valid one.
    """
    part = Part(*PART.open(data))
    if len(data) != PART.size:
        raise CodecError(f"part of a window with {len(data) - PART.size} bytes of payload")
    return part
