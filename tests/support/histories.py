"""Topic contents of a job with very many released epochs, as its stages would write them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.stages import checkpoints
from dpstream.pipeline.stages.checkpoints import Checkpoint
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.epoch_log import EpochPosition
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.estimation import Estimation
from dpstream.pipeline.stages.result_documents import ResultDocuments
from dpstream.randomizers.dyadic import orders_due
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial
from dpstream.topics.records import Registration

PRODUCERS = 3
REPORTS = 300
NOW = 1_700_000_000_000
"""Milliseconds since 1970."""


def history_values(horizon: int, *, renew: bool) -> dict[str, Any]:
    return {
        "name": "long",
        "protocol": "future_rand",
        "parameters": {"epsilon": 4, "max_changes": 4},
        "epochs": {"count": horizon, "renew": renew},
        "shuffle": {"grace": "1h", "minimum": 1, "producers": PRODUCERS},
    }


def history_job(epochs: int, horizon: int) -> DeployedJob:
    values = history_values(horizon, renew=horizon < epochs)
    return deploy_job(make_job(values), deployed_at=NOW, deployment=bytes(range(16)))


def fill(
    job: DeployedJob,
    epochs: int,
    append: Callable[[Append], object],
    flush: Callable[[], object] = lambda: None,
) -> None:
    """Write registrations, and the manifest, partial, estimate and document of every epoch.

    The records of each topic are appended in order, with a flush after every thousand epochs and at
    the end.
    """
    rng = np.random.default_rng(1)
    identity = job.fingerprint, job.deployment
    for number in range(PRODUCERS):
        enrollment = number.to_bytes(16, "big")
        registration = Registration(job.deployment, f"gateway {number}", enrollment, 1)
        append(Append(Role.PRODUCERS, 0, registration.to_bytes()))
    decisions, estimation, documents = DecisionLog(job), Estimation(job), ResultDocuments(job)
    populations = [1_000] * PRODUCERS
    for epoch in range(1, epochs + 1):
        if epoch % 50 == 0:
            populations[epoch // 50 % PRODUCERS] += 1
        present = int(rng.integers(sum(populations) * 9 // 10, sum(populations)))
        manifest = Manifest(
            *identity, epoch, WindowStatus.RELEASED, epoch - 1, epoch, 1, (True,) * PRODUCERS,
            tuple(populations), present, sum(populations), NOW + 1_000 * epoch,
        )  # fmt: skip
        record = decisions.encode(manifest)
        decisions.apply(LogRecord(epoch - 1, record))
        append(Append(Role.MANIFESTS, 0, record))
        local = job.epochs.local(epoch)
        window = job.aggregator()
        window.add(local, rng.integers(0, 2 * orders_due(local), (REPORTS, 1), np.uint8), None)
        for part in split_partial(
            fingerprint=identity[0],
            deployment=identity[1],
            epoch=epoch,
            manifest_offset=epoch - 1,
            attempt=rng.bytes(16),
            payload=window.to_bytes(),
        ):
            append(Append(Role.PARTIALS, 0, encode_partial(part)))
        estimation.take_in(manifest, window.to_bytes())
        estimate = EstimateRecord(
            job.deployment, epoch, manifest.window_status, manifest.timestamp, present,
            manifest.population, estimation.estimate(), job.guarantee_at(epoch, 1).to_json(),
            assumes_changes=job.assumes_changes,
        )  # fmt: skip
        append(Append(Role.ESTIMATES, 0, estimate.to_bytes()))
        append(documents.append(estimate))
        state = estimation.state() if epoch % checkpoints.INTERVAL == 0 else None
        if state is not None:
            place = EpochPosition(epoch, 1, epoch - 1, sha256(record).digest(), (), epoch)
            checkpoint = Checkpoint(job.deployment, job.fingerprint, place, state).append()
            assert checkpoint is not None
            append(checkpoint)
        if epoch % 1_000 == 0:
            flush()
    flush()
