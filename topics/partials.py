"""Partials: the aggregator's state of one window, in chunks for the publisher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dpstream.topics.frames import (
    RECORD_CAP,
    U4_MAX,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
)

_PARTIAL = Frame(RecordType.PARTIAL, "QQ16sII")
_PART_BYTES = RECORD_CAP - _PARTIAL.size
# No aggregator state starts like this: states start with nonnegative integers.
_CORRUPT = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class PartialPart:
    """A chunk of a window's partial.

    `manifest_offset` is that of the manifest that released the window. Each write of a partial is a
    new `attempt` with `total` chunks; chunks of two attempts never mix.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    manifest_offset: int
    attempt: bytes
    index: int
    total: int
    payload: bytes

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, attempt=self.attempt
        )
        check_range("epoch", self.epoch, 1)
        check_range("manifest_offset", self.manifest_offset, 0)
        check_range("total", self.total, 1, U4_MAX)
        check_range("index", self.index, 0, self.total - 1)


def split_partial(
    *,
    fingerprint: bytes,
    deployment: bytes,
    epoch: int,
    manifest_offset: int,
    attempt: bytes,
    payload: bytes,
) -> Iterator[PartialPart]:
    starts = range(0, max(len(payload), 1), _PART_BYTES)
    for index, start in enumerate(starts):
        chunk = payload[start : start + _PART_BYTES]
        yield PartialPart(
            fingerprint, deployment, epoch, manifest_offset, attempt, index, len(starts), chunk
        )


def join_parts(parts: Iterable[PartialPart]) -> bytes:
    """Return a partial's payload from its chunks in any order, or raise `CodecError`."""
    by_index: dict[int, PartialPart] = {}
    for part in parts:
        if by_index.setdefault(part.index, part) != part:
            raise CodecError(
                f"chunk {part.index} of a partial appears twice, with different contents"
            )
    if not by_index:
        raise CodecError("a partial has no chunks; expected at least 1")
    first = next(iter(by_index.values()))
    if len({_without_content(part) for part in by_index.values()}) > 1:
        raise CodecError("chunks of different partials cannot be joined")
    if len(by_index) != first.total:
        raise CodecError(f"a partial has only {len(by_index)} of its {first.total} chunks")
    return b"".join(by_index[index].payload for index in range(first.total))


def corrupt_payload(reason: str) -> bytes:
    return _CORRUPT + reason.encode()


def corruption_reason(payload: bytes) -> str | None:
    """Return the reason why a window's counts are unknown, or None if the payload is a state.

    >>> corruption_reason(corrupt_payload("two shares differ")), corruption_reason(bytes(8))
    ('two shares differ', None)
    """
    if not payload.startswith(_CORRUPT):
        return None
    return payload[len(_CORRUPT) :].decode(errors="replace")


def encode_partial(part: PartialPart) -> bytes:
    return _PARTIAL.seal(
        part.fingerprint,
        part.deployment,
        part.epoch,
        part.manifest_offset,
        part.attempt,
        part.index,
        part.total,
        payload=part.payload,
    )


def decode_partial(data: bytes) -> PartialPart:
    fingerprint, deployment, epoch, manifest_offset, attempt, index, total = _PARTIAL.open(data)
    payload = data[_PARTIAL.size :]
    return PartialPart(
        fingerprint, deployment, epoch, manifest_offset, attempt, index, total, payload
    )


def _without_content(part: PartialPart) -> PartialPart:
    return replace(part, index=0, payload=b"")
