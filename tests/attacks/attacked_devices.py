"""Jobs whose devices report directly, and the request bodies that these devices send."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.topics.envelopes import encode_body, encode_envelope
from dpstream.topics.sealing import Lock, device_context, key_id, seal

EPOCHS: Final = 4
"""Length of a horizon in epochs; another horizon follows."""
_JOB: Final[dict[str, Any]] = {
    "name": "audit",
    "protocol": "future_rand",
    "parameters": {"epsilon": 1, "max_changes": 2},
    "epochs": {"count": EPOCHS, "start": "2026-01-01", "length": "1d", "renew": True},
    "shuffle": {"grace": "1h"},
    "devices": {},
}
_BEGIN: Final = 1_767_225_600_000
_NOON: Final = 43_200_000


def device_job(**changed: Any) -> DeployedJob:
    """Build a job of daily epochs, deployed at the start of the first one."""
    return _deployed(json.dumps({**_JOB, **changed}))


# Several attacks use the same job, and calibration is slow.
@lru_cache(maxsize=16)
def _deployed(written: str) -> DeployedJob:
    return deploy_job(make_job(json.loads(written)), deployed_at=_BEGIN, deployment=bytes(16))


def noon(job: DeployedJob, epoch: int) -> int:
    """Return the middle of an epoch, in milliseconds since 1970."""
    times = times_of(job)
    assert times is not None
    start = times.start(epoch)
    assert start is not None
    return start + _NOON


def identity(what: str, number: int) -> bytes:
    """Return a 16-byte id that depends only on the arguments."""
    return hashlib.sha256(f"{what} {number}".encode()).digest()[:16]


def body_of(
    job: DeployedJob,
    epoch: int,
    devices: Iterable[int],
    words: Sequence[int] = (0,),
    *,
    enrolls: bool = True,
    longer: int = 0,
) -> bytes:
    """Build a body with one report per device; contents are `longer` bytes too long."""
    assert job.devices is not None
    key = job.devices.key_at(epoch)
    form = job.content_format
    packed = form.pack(np.array(words, form.dtype).reshape(-1, form.width))
    envelopes: list[bytes] = []
    for device in devices:
        report, content = identity(f"report of epoch {epoch}", device), packed
        if key is not None:
            context = device_context(job.deployment, job.fingerprint, epoch, report)
            content = seal(content, Lock(key, context))
        content += bytes(longer)
        envelopes.append(encode_envelope(identity("device", device), report, enrolls, content))
    return encode_body(
        job.deployment, job.fingerprint, epoch, None if key is None else key_id(key), envelopes
    )
