"""The content of ``recording.json``: the recorded job, the files, and missing windows.

The file has a canonical encoding and ends with a SHA-256 of its content: a file with any altered
bit is rejected. Checksums detect damage; they do not prevent replacement by another recording.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dpstream.pipeline.errors import DpstreamError

VERSION = 1
INDEX_FILE = "recording.json"

_WORD_BYTES = (1, 2, 4, 8)


class RecordingError(DpstreamError, ValueError):
    pass


class RecordKind(StrEnum):
    MANIFESTS = "manifests"
    WINDOWS = "windows"
    PARTIALS = "partials"
    ESTIMATES = "estimates"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    path: str
    kind: RecordKind
    first_epoch: int
    last_epoch: int
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Missing:
    first_epoch: int
    last_epoch: int
    why: str

    def __str__(self) -> str:
        one = self.first_epoch == self.last_epoch
        epochs = f"epochs {self.first_epoch:,} to {self.last_epoch:,}"
        return f"windows of {f'epoch {self.first_epoch:,}' if one else epochs}: {self.why}"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position in the topic of released windows; records before `offset` are no longer needed."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RecordingIndex:
    """The content of ``recording.json``.

    Attributes:
        software: Version of dpstream that started the recording.
        job_record: The deployed job's record in ``dpstream.jobs``, JSON text.
        word_bytes, word_width: Bytes per integer, and integers per report.
        from_epoch: First requested epoch.
        first_epoch, last_epoch: First and last recorded epoch; None for an empty recording.
        places: Positions in the topic of released windows at which to resume.
    """

    software: str
    job: str
    deployment: bytes
    fingerprint: bytes
    job_record: str
    word_bytes: int
    word_width: int
    from_epoch: int = 1
    first_epoch: int | None = None
    last_epoch: int | None = None
    files: tuple[RecordingFile, ...] = ()
    missing: tuple[Missing, ...] = ()
    places: tuple[LogPosition, ...] = ()

    def of_kind(self, kind: RecordKind) -> list[RecordingFile]:
        return [file for file in self.files if file.kind is kind]

    def lacks(self, epoch: int) -> bool:
        return any(gap.first_epoch <= epoch <= gap.last_epoch for gap in self.missing)

    def to_bytes(self) -> bytes:
        """Encode the index as the content of its file.

        >>> index = RecordingIndex("0.1", "students", bytes(16), bytes(16), "{}", 2, 1)
        >>> RecordingIndex.from_bytes(index.to_bytes()) == index
        True
        """
        body = {
            "version": VERSION,
            "software": self.software,
            "job": self.job,
            "deployment": self.deployment.hex(),
            "fingerprint": self.fingerprint.hex(),
            "job_record": self.job_record,
            "words": {"bytes": self.word_bytes, "width": self.word_width},
            "from_epoch": self.from_epoch,
            "first_epoch": self.first_epoch,
            "last_epoch": self.last_epoch,
            "files": [
                {
                    "path": file.path,
                    "kind": file.kind.value,
                    "first_epoch": file.first_epoch,
                    "last_epoch": file.last_epoch,
                    "rows": file.rows,
                    "bytes": file.size,
                    "sha256": file.sha256,
                }
                for file in self.files
            ],
            "missing": [
                {
                    "first_epoch": gap.first_epoch,
                    "last_epoch": gap.last_epoch,
                    "why": gap.why,
                }
                for gap in self.missing
            ],
            "places": [[place.partition, place.offset] for place in self.places],
        }
        return _spell({**body, "sha256": _digest(body)})

    @classmethod
    def from_bytes(cls, data: bytes) -> RecordingIndex:
        try:
            body = json.loads(data)
            if body["version"] != VERSION:
                raise RecordingError(f"got version {body['version']!r:.20}; expected {VERSION}")
            digest = body.pop("sha256")
            if digest != _digest(body) or data != _spell({**body, "sha256": digest}):
                raise RecordingError("modified: its own checksum does not match")
            first, last = body["first_epoch"], body["last_epoch"]
            return cls(
                software=_text(body["software"]),
                job=_text(body["job"]),
                deployment=bytes.fromhex(body["deployment"]),
                fingerprint=bytes.fromhex(body["fingerprint"]),
                job_record=_text(body["job_record"]),
                word_bytes=_WORD_BYTES[_WORD_BYTES.index(body["words"]["bytes"])],
                word_width=_number(body["words"]["width"], 1),
                from_epoch=_number(body["from_epoch"]),
                first_epoch=None if first is None else _number(first),
                last_epoch=None if last is None else _number(last),
                files=tuple(map(_file, body["files"])),
                missing=tuple(map(_missing, body["missing"])),
                places=tuple(
                    LogPosition(_number(partition), _number(offset))
                    for partition, offset in body["places"]
                ),
            )
        except RecordingError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordingError(f"modified or truncated: {error!r:.200}") from None


def with_missing(missing: Iterable[Missing], gap: Missing) -> tuple[Missing, ...]:
    """Add a gap, and merge adjacent epochs that are missing for the same reason."""
    gaps = [*missing]
    if gaps and (gaps[-1].why, gaps[-1].last_epoch + 1) == (gap.why, gap.first_epoch):
        gap = replace(gap, first_epoch=gaps.pop().first_epoch)
    return (*gaps, gap)


def _file(body: dict[str, Any]) -> RecordingFile:
    path, kind = _text(body["path"]), RecordKind(body["kind"])
    if re.fullmatch(rf"{kind}-[0-9]+\.parquet", path) is None:
        raise RecordingError(f"unexpected file name {path!r:.80}")
    return RecordingFile(
        path=path,
        kind=kind,
        first_epoch=_number(body["first_epoch"]),
        last_epoch=_number(body["last_epoch"]),
        rows=_number(body["rows"]),
        size=_number(body["bytes"]),
        sha256=_text(body["sha256"]),
    )


def _missing(body: dict[str, Any]) -> Missing:
    return Missing(
        first_epoch=_number(body["first_epoch"]),
        last_epoch=_number(body["last_epoch"]),
        why=_text(body["why"]),
    )


def _number(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"got {value!r:.40}; expected an integer of at least {least}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r:.40}; expected a string")
    return value


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_spell(body)).hexdigest()


def _spell(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()
