"""Markers, in the topic of dead letters, for dead letters that were requeued."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpstream.topics.frames import VERSION, CodecError, check_identities, check_range
from dpstream.topics.names import FURTHER_REPORTS, Role

RAW_ROLES = (Role.REPORTS, *FURTHER_REPORTS)
"""Topics to which records are requeued."""
OFFSETS_MAX = 1000

_KEYS = {"version", "type", "deployment", "partition", "offsets"}
_ROLE = "role"


@dataclass(frozen=True, slots=True)
class Redriven:
    """Rejected records that were requeued to their topic of raw reports.

    Attributes:
        partition: Partition in which the records were rejected.
        offsets: Offsets of the rejected records, at most `OFFSETS_MAX`.
        role: Role of the topic; omitted if it is that of the first parallel shuffler.

    >>> marker = Redriven(bytes(16), 3, (7, 11))
    >>> Redriven.from_bytes(marker.to_bytes()) == marker
    True
    """

    deployment: bytes
    partition: int
    offsets: tuple[int, ...]
    role: Role = Role.REPORTS

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        check_range("partition", self.partition, 0)
        check_range("number of offsets", len(self.offsets), 1, OFFSETS_MAX)
        for offset in self.offsets:
            check_range("offset", offset, 0)
        if self.role not in RAW_ROLES:
            raise CodecError(f"role is {self.role}; expected one of {', '.join(RAW_ROLES)}")

    def to_bytes(self) -> bytes:
        body = {
            "version": VERSION,
            "type": "redriven",
            "deployment": self.deployment.hex(),
            "partition": self.partition,
            "offsets": self.offsets,
            **({} if self.role is Role.REPORTS else {_ROLE: self.role}),
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Redriven:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise CodecError("record is not JSON") from None
        if not isinstance(body, dict) or set(body) - {_ROLE} != _KEYS or body["type"] != "redriven":
            raise CodecError("record is not a marker of requeued dead letters")
        if body["version"] != VERSION:
            raise CodecError(f"record has version {body['version']!r:.40}; expected {VERSION}")
        try:
            deployment = bytes.fromhex(body["deployment"])
            numbers = [body["partition"], *body["offsets"]]
            role = Role(body.get(_ROLE, Role.REPORTS))
        except (TypeError, ValueError):
            raise CodecError("a field of the marker has the wrong type") from None
        # Not isinstance: True is an int.
        if any(type(number) is not int for number in numbers):
            raise CodecError("partition and offsets must be integers")
        return cls(deployment, numbers[0], tuple(numbers[1:]), role)


def markers(
    deployment: bytes, partition: int, offsets: Sequence[int], role: Role = Role.REPORTS
) -> Iterator[Redriven]:
    for start in range(0, len(offsets), OFFSETS_MAX):
        yield Redriven(deployment, partition, tuple(offsets[start : start + OFFSETS_MAX]), role)
