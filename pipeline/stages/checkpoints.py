"""Checkpoints of a publisher: its state after an epoch, and the offsets where reading resumes.

The logs stay authoritative. A checkpoint is used only if the manifest to which it refers decided
its epoch, and its state reproduces the published estimate of that epoch, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.pipeline.stages.epoch_log import EpochPosition
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role

INTERVAL = 512
"""Number of epochs between two checkpoints, unless the state cannot be saved."""
NEAR = 2 * INTERVAL
"""Number of records at the end of the topic that are searched for a checkpoint."""
KEY = b"checkpoint"
"""Key of checkpoint records; records of estimates have no key."""
LARGEST = 1 << 16
"""Maximum size of a checkpoint in bytes; if the state is larger, the whole horizon is read."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a publisher after an epoch; `place` has the offsets at which reading resumes."""

    deployment: bytes
    fingerprint: bytes
    place: EpochPosition
    state: Mapping[str, Any]

    @property
    def epoch(self) -> int:
        return self.place.epoch

    def append(self) -> Append | None:
        place = self.place
        body = {
            "checkpoint": _VERSION,
            "deployment": self.deployment.hex(),
            "fingerprint": self.fingerprint.hex(),
            "epoch": place.epoch,
            "first_epoch": place.first_epoch,
            "manifest_offset": place.manifest_offset,
            "manifest_digest": place.manifest_digest.hex(),
            "whole_manifests": list(place.whole_manifests),
            "partials_offset": place.partials_offset,
            "state": self.state,
        }
        try:
            text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except ValueError:
            return None
        value = text.encode()
        return None if len(value) > LARGEST else Append(Role.ESTIMATES, 0, value, KEY)

    @classmethod
    def from_bytes(cls, value: bytes) -> Checkpoint:
        try:
            body = json.loads(value)
            if body["checkpoint"] != _VERSION:
                raise CodecError(f"version: got {body['checkpoint']!r}; expected {_VERSION}")
            numbers = [
                body[name]
                for name in ("epoch", "first_epoch", "manifest_offset", "partials_offset")
            ]
            whole = tuple(body["whole_manifests"])
            if not all(type(number) is int and number >= 0 for number in (*numbers, *whole)):
                raise CodecError("checkpoint epochs and offsets must be integers of at least 0")
            epoch, first_epoch, manifest_offset, partials_offset = numbers
            return cls(
                bytes.fromhex(body["deployment"]),
                bytes.fromhex(body["fingerprint"]),
                EpochPosition(
                    epoch,
                    first_epoch,
                    manifest_offset,
                    bytes.fromhex(body["manifest_digest"]),
                    whole,
                    partials_offset,
                ),
                dict(body["state"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(f"not a checkpoint: {error!r}") from error


def own_checkpoint(job: DeployedJob, key: bytes | None, value: bytes) -> Checkpoint | None:
    if key != KEY:
        return None
    try:
        checkpoint = Checkpoint.from_bytes(value)
    except CodecError:
        return None
    own = (checkpoint.deployment, checkpoint.fingerprint) == (job.deployment, job.fingerprint)
    return checkpoint if own and epoch_problem(job, checkpoint.epoch) is None else None


def estimates_in(records: Iterable[LogRecord]) -> Iterator[EstimateRecord]:
    return (EstimateRecord.from_bytes(each.value) for each in records if each.key != KEY)


def resumed(job: DeployedJob, checkpoint: Checkpoint, published: EstimateRecord) -> Estimation:
    """Restore a checkpoint; raise `ValueError` unless it reproduces the published estimate."""
    estimation = Estimation.resumed(job, checkpoint.epoch, checkpoint.state)
    if published.epoch != checkpoint.epoch:
        raise ValueError(
            f"got an estimate for epoch {published.epoch}; expected epoch {checkpoint.epoch}"
        )
    if checkpoint.state:
        estimate = estimation.estimate()
        if estimate is None or published.estimate is None:
            raise ValueError(
                f"epoch {checkpoint.epoch}: the published or the restored estimate is missing"
            )
        if estimate.to_json() != published.estimate.to_json():
            raise ValueError(f"epoch {checkpoint.epoch}: published and restored estimates differ")
    return estimation
