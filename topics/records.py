"""JSON records of producers and drains; and dead letters, which Kafka headers describe.

JSON is parsed strictly: unknown, missing and repeated keys, values of wrong types or out of range,
unsupported versions, and records of more than 4 KiB are rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpstream.topics.frames import (
    INTEGER_MAX,
    VERSION,
    CodecError,
    OversizedError,
    VersionError,
    check_identities,
    check_range,
)

JSON_CAP = 4096
PRODUCER_NAME_MAX = 200

_IDENTITY = re.compile("[0-9a-f]{32}")
_HEADER = "dpstream-"
_DECIMAL = re.compile("0|[1-9][0-9]{0,18}")
_REGISTRATION_KEYS = {"deployment": str, "name": str, "enrollment": str, "first_epoch": int}
_DEREGISTRATION_KEYS = {"deployment": str, "enrollment": str, "last_epoch": int}
_DRAIN_KEYS = {"deployment": str, "partition": int, "end": int}
_DISCARD_KEYS = {"deployment": str, "end": int}


@dataclass(frozen=True, slots=True)
class Registration:
    """Start of a producer's reports; the first registration of a name in a deployment counts.

    The name has 1 to 200 printable characters. All records of the producer include its enrollment
    ID.
    """

    deployment: bytes
    name: str
    enrollment: bytes
    first_epoch: int

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment, enrollment=self.enrollment)
        check_range("first_epoch", self.first_epoch, 1)
        if not 1 <= len(self.name) <= PRODUCER_NAME_MAX or not self.name.isprintable():
            raise CodecError(
                f"producer name is invalid; expected 1 to {PRODUCER_NAME_MAX} printable characters"
            )

    def to_bytes(self) -> bytes:
        return _dump(
            "registration",
            deployment=self.deployment.hex(),
            name=self.name,
            enrollment=self.enrollment.hex(),
            first_epoch=self.first_epoch,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Registration:
        return cls._from_json(_load(data))

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> Registration:
        _check_shape(body, "registration", _REGISTRATION_KEYS)
        return cls(
            _identity(body, "deployment"),
            body["name"],
            _identity(body, "enrollment"),
            body["first_epoch"],
        )


@dataclass(frozen=True, slots=True)
class Deregistration:
    """End of a producer's reports; the first deregistration of an enrollment counts.

    A producer writes it for itself. For a producer that will not return, an operator writes it,
    which is called retiring the producer. `last_epoch` is 0 if the producer has no epoch with
    reports.
    """

    deployment: bytes
    enrollment: bytes
    last_epoch: int

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment, enrollment=self.enrollment)
        check_range("last_epoch", self.last_epoch, 0)

    def to_bytes(self) -> bytes:
        return _dump(
            "deregistration",
            deployment=self.deployment.hex(),
            enrollment=self.enrollment.hex(),
            last_epoch=self.last_epoch,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Deregistration:
        return cls._from_json(_load(data))

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> Deregistration:
        _check_shape(body, "deregistration", _DEREGISTRATION_KEYS)
        return cls(_identity(body, "deployment"), _identity(body, "enrollment"), body["last_epoch"])


@dataclass(frozen=True, slots=True)
class Drain:
    """Request to finalize a partition's open windows without waiting for missing producers.

    An operator writes one for every partition. A window that started below `end`, the offset of the
    partition's next record when the drain started, closes with the included producers as soon as
    all records below `end` have been read. The windows of all earlier epochs close too, because
    estimates require them. Among several drains, the highest `end` counts.
    """

    deployment: bytes
    partition: int
    end: int

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        check_range("partition", self.partition, 0)
        check_range("end", self.end, 0)

    def to_bytes(self) -> bytes:
        return _dump(
            "drain", deployment=self.deployment.hex(), partition=self.partition, end=self.end
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Drain:
        return cls._from_json(_load(data))

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> Drain:
        _check_shape(body, "drain", _DRAIN_KEYS)
        return cls(_identity(body, "deployment"), body["partition"], body["end"])


@dataclass(frozen=True, slots=True)
class Discard:
    """Statement that the dead letters below offset `end` were seen and no longer cause warnings.

    It is written among the dead letters, but without headers, so readers of dead letters skip it.
    """

    deployment: bytes
    end: int

    def __post_init__(self) -> None:
        check_identities(deployment=self.deployment)
        check_range("end", self.end, 0)

    def to_bytes(self) -> bytes:
        return _dump("discard", deployment=self.deployment.hex(), end=self.end)

    @classmethod
    def from_bytes(cls, data: bytes) -> Discard:
        body = _load(data)
        _check_shape(body, "discard", _DISCARD_KEYS)
        return cls(_identity(body, "deployment"), body["end"])


def decode_producer_record(data: bytes) -> Registration | Deregistration | Drain:
    body = _load(data)
    match body.get("type"):
        case "registration":
            return Registration._from_json(body)
        case "deregistration":
            return Deregistration._from_json(body)
        case "drain":
            return Drain._from_json(body)
        case other:
            raise CodecError(
                f"record has unknown type {other!r:.40}; expected registration, deregistration or "
                "drain"
            )


class Reason(StrEnum):
    UNREADABLE = "unreadable"
    """Damaged, or not a dpstream record."""
    FINGERPRINT = "fingerprint"
    """Made for a job whose reports have another meaning."""
    DEPLOYMENT = "deployment"
    """Made for another deployment."""
    VERSION = "version"
    """Unsupported version of the format."""
    OVERSIZED = "oversized"
    """Larger than the maximum record size."""
    ENROLLMENT = "enrollment"
    """Producer not registered, or not for this epoch."""
    EPOCH = "epoch"
    """Epoch out of range or in another partition."""
    PUNCTUATION = "punctuation"
    """Contradiction between a producer's punctuation and its batches."""
    PROTOCOL = "protocol"
    """Messages that are invalid for the protocol."""
    SEALED = "sealed"
    """Sealed where prohibited, not sealed where required, or sealed to an unavailable key."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A rejected record, unchanged, and the reason.

    The Kafka record has the original value, byte by byte. The headers ``dpstream-topic``,
    ``-partition``, ``-offset``, ``-reason`` and ``-detail`` have the other fields.
    """

    topic: str
    partition: int
    offset: int
    reason: Reason
    detail: str
    value: bytes

    def __post_init__(self) -> None:
        check_range("partition", self.partition, 0)
        check_range("offset", self.offset, 0)

    def to_record(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        fields = {
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
            "reason": self.reason.value,
            "detail": self.detail,
        }
        return self.value, [(_HEADER + key, text.encode()) for key, text in fields.items()]

    @classmethod
    def from_record(cls, value: bytes, headers: Iterable[tuple[str, bytes]]) -> DeadLetter:
        """Decode a Kafka record; raise `CodecError` for a missing, repeated or invalid header."""
        fields: dict[str, str] = {}
        for name, content in headers:
            if not name.startswith(_HEADER):
                continue
            try:
                text = content.decode()
            except UnicodeDecodeError:
                raise CodecError(f"header {name} of a dead letter is not UTF-8") from None
            key = name.removeprefix(_HEADER)
            if key in fields:
                raise CodecError(f"header {name} of a dead letter is repeated")
            fields[key] = text
        _check_keys(fields, ("topic", "partition", "offset", "reason", "detail"), "dead letter")
        if fields["reason"] not in list(Reason):
            raise CodecError(
                f"dead letter has unknown reason {fields['reason']!r}; expected one of "
                f"{', '.join(Reason)}"
            )
        return cls(
            fields["topic"],
            _decimal(fields, "partition"),
            _decimal(fields, "offset"),
            Reason(fields["reason"]),
            fields["detail"],
            value,
        )


def _dump(kind: str, **fields: str | int) -> bytes:
    body = {"version": VERSION, "type": kind, **fields}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _load(data: bytes) -> dict[str, Any]:
    if len(data) > JSON_CAP:
        raise OversizedError(f"JSON record of {len(data)} bytes exceeds the maximum, {JSON_CAP}")
    try:
        body = json.loads(data.decode(), object_pairs_hook=_without_repetition)
    except CodecError:
        raise
    except (ValueError, RecursionError) as error:
        raise CodecError(f"record is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise CodecError("record is not a JSON object")
    version = body.get("version")
    if type(version) is int and version != VERSION:
        raise VersionError(f"record has version {version}; expected {VERSION}")
    return body


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise CodecError("a key of the record is repeated")
    return body


def _check_shape(body: dict[str, Any], kind: str, types: Mapping[str, type]) -> None:
    if body.get("type") != kind:
        raise CodecError(f"record has type {body.get('type')!r:.40}; expected {kind!r}")
    types = {"version": int, "type": str, **types}
    _check_keys(body, types, kind)
    for key, expected in types.items():
        # Not isinstance: True is an int.
        if type(body[key]) is not expected:
            raise CodecError(
                f"'{key}' of a {kind} has type {type(body[key]).__name__}; expected "
                f"{expected.__name__}"
            )


def _check_keys(body: Mapping[str, Any], keys: Iterable[str], kind: str) -> None:
    missing = [key for key in keys if key not in body]
    if missing:
        raise CodecError(f"{kind} is missing {', '.join(missing)}")
    unknown = sorted(set(body) - set(keys))
    if unknown:
        raise CodecError(f"{kind} has unknown key {unknown[0]!r:.40}")


def _identity(body: dict[str, Any], key: str) -> bytes:
    if not _IDENTITY.fullmatch(body[key]):
        raise CodecError(f"{key} is invalid; expected 32 lower-case hexadecimal digits")
    return bytes.fromhex(body[key])


def _decimal(fields: dict[str, str], key: str) -> int:
    if not _DECIMAL.fullmatch(fields[key]):
        raise CodecError(f"{key} of a dead letter is not an integer from 0 to {INTEGER_MAX}")
    return int(fields[key])
