"""Jobs whose devices report directly, and request bodies of these devices."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.jobs.key_files import CollectorKey
from dpstream.topics.envelopes import encode_body, encode_envelope
from dpstream.topics.sealing import Lock, device_context, key_id, seal
from tests.support.new_jobs import new_job

KEY = CollectorKey(b"k" * 32)
START = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN = int(START.timestamp() * 1000)
"""Start of the first epoch, in milliseconds since 1970."""
DAY = int(timedelta(days=1).total_seconds() * 1000)
LATE = 1_800_000
"""Allowed lateness of reports after the end of their epoch, in milliseconds."""

SETTLING = 1_000
"""Further delay before collectors announce that an epoch is complete, in milliseconds."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "future_rand": {"epsilon": 1, "max_changes": 2},
    "sampled_response": {"epsilon": 1},
    "shuffled_counts": {"epsilon": 0.5, "delta": 1e-6},
}


def device_job(name: str = "phones", protocol: str = "future_rand", **devices: Any) -> DeployedJob:
    """Build a job with daily epochs, deployed at the start of the first epoch."""
    shuffle: dict[str, Any] = {"grace": "1h"}
    parameters = PARAMETERS[protocol]
    if protocol == "shuffled_counts":
        shuffle["minimum"] = 1000
    job = new_job(
        name,
        protocol,
        parameters,
        epochs={"count": 16, "start": START.isoformat(), "length": "1d"},
        shuffle=shuffle,
        devices=devices,
    )
    deployed = deploy_job(job, deployed_at=BEGIN)
    deployed = deployed.model_copy(update={"collector_key": KEY.digest})
    return described(deployed, Ed25519PrivateKey.generate())


def messages_of(job: DeployedJob, numbers: Sequence[int]) -> NDArray[np.unsignedinteger]:
    form = job.content_format
    return np.array(numbers, form.dtype).reshape(-1, form.width)


def envelope(
    job: DeployedJob,
    epoch: int = 1,
    words: Sequence[int] = (),
    device: bytes | None = None,
    report: bytes | None = None,
    enrolls: bool = True,
) -> bytes:
    assert job.devices is not None
    report = secrets.token_bytes(16) if report is None else report
    content = job.content_format.pack(messages_of(job, words))
    key = job.devices.key_at(epoch)
    if key is not None:
        context = device_context(job.deployment, job.fingerprint, epoch, report)
        content = seal(content, Lock(key, context))
    return encode_envelope(device or secrets.token_bytes(16), report, enrolls, content)


def body(job: DeployedJob, epoch: int = 1, envelopes: Sequence[bytes] | None = None) -> bytes:
    assert job.devices is not None
    key = job.devices.key_at(epoch)
    return encode_body(
        job.deployment,
        job.fingerprint,
        epoch,
        None if key is None else key_id(key),
        list(envelopes) if envelopes is not None else [envelope(job, epoch)],
    )
