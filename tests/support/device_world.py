"""In-memory pipeline with faults, for a job whose devices report directly.

Tests write the collectors' records, to choose each report's device, batch and number of copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.sealing_keys import public_bytes
from dpstream.topics.loose_batches import (
    Enrollments,
    LooseBatch,
    Watermark,
    encode_enrollments,
    encode_loose_batch,
    encode_watermark,
    horizon_tag,
    report_tag,
)
from dpstream.topics.names import Role
from dpstream.topics.sealing import Lock, device_context, key_id, seal
from tests.support.world import BEGUN, World

DEPLOYMENT = bytes(range(16))
COLLECTOR_KEY = bytes(32)
EPOCH = 100.0
"""Length in seconds."""
GRACE = 40.0


def device_job(
    protocol: str = "future_rand",
    parameters: Mapping[str, Any] | None = None,
    count: int = 8,
    private_keys: Sequence[Any] = (),
    **sections: Any,
) -> DeployedJob:
    """Build a job whose calendar starts with a world; reports are sealed if there are keys."""
    seal = [public_bytes(key).hex() for key in private_keys]
    devices = {"seal": seal, "rotate": 2} if len(seal) > 1 else {"seal": seal}
    job = make_job(
        {
            "name": "devices",
            "protocol": protocol,
            "parameters": parameters or {"epsilon": 4, "max_changes": 2},
            "epochs": {"count": count, "start": "2023-11-14T22:13:20Z", "length": "PT100S"},
            "shuffle": {"minimum": 2, "grace": "PT40S"},
            "topics": {"partitions": 2},
            "devices": devices,
            **sections,
        }
    )
    return deploy_job(job, deployed_at=BEGUN, deployment=DEPLOYMENT)


@dataclass
class Sent:
    """Messages of one device, its number, and whether it enrolls."""

    device: int
    words: Sequence[int]
    enrolls: bool = False

    @property
    def subject(self) -> bytes:
        return b"d" + self.device.to_bytes(16, "little")

    @property
    def report(self) -> bytes:
        return b"report of" + self.device.to_bytes(7, "little")


class DeviceWorld(World):
    def __init__(self, job: DeployedJob, folder: Path = Path(), **fields: Any) -> None:
        super().__init__(job, folder, {}, **fields)

    def collect(self, epoch: int, sent: Sequence[Sent]) -> None:
        job = self.job
        tags = [
            horizon_tag(COLLECTOR_KEY, job.deployment, job.epochs.horizon_of(epoch), each.subject)
            for each in sent
            if each.enrolls
        ]
        if tags:
            array = np.frombuffer(b"".join(tags), "<u8")
            enrollments = Enrollments(job.fingerprint, job.deployment, epoch, array)
            self.write(Role.DEVICES, 0, encode_enrollments(enrollments))
        self.write_batch(epoch, [self.row(epoch, each) for each in sent])

    def row(self, epoch: int, sent: Sent) -> bytes:
        job = self.job
        assert job.devices is not None
        tag = report_tag(COLLECTOR_KEY, job.deployment, epoch, sent.subject)
        words = np.array(sent.words, job.content_format.dtype).reshape(-1, job.content_format.width)
        content = job.content_format.pack(words)
        key = job.devices.key_at(epoch)
        if key is None:
            return tag + content
        context = device_context(job.deployment, job.fingerprint, epoch, sent.report)
        return tag + sent.report + seal(content, Lock(key, context))

    def write_batch(self, epoch: int, rows: Sequence[bytes]) -> None:
        assert self.job.devices is not None
        key = self.job.devices.key_at(epoch)
        batch = LooseBatch(
            self.job.fingerprint,
            self.job.deployment,
            epoch,
            None if key is None else key_id(key),
            np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1),
        )
        self.write(Role.REPORTS, self.job.topics.partition_of(epoch), encode_loose_batch(batch))

    def watermark(self, epoch: int, collector: int) -> None:
        record = Watermark(self.job.fingerprint, self.job.deployment, _collector(collector), epoch)
        self.write(Role.REPORTS, self.job.topics.partition_of(epoch), encode_watermark(record))

    def beat(self, collector: int, **said: Any) -> None:
        body = {
            "deployment": self.job.deployment.hex(),
            "stage": "collect",
            "worker": _collector(collector).hex(),
            "partitions": [],
            **said,
        }
        value = json.dumps(body).encode()
        key = f"collect/{collector}".encode()
        self.log.append(Append(Role.STATUS, 0, value, key))

    def write(self, role: Role, partition: int, value: bytes) -> None:
        self.log.append(Append(role, partition, value))

    def at(self, epoch: int, seconds: float = 0.0) -> None:
        self.now = (epoch - 1) * EPOCH + seconds


def _collector(number: int) -> bytes:
    return bytes([number]) * 16
