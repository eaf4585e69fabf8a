"""Models for producers that are tested without a publisher."""

from __future__ import annotations

import numpy as np

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.topics.models import ModelRecord
from dpstream.topics.names import Role


def publish_models(job: DeployedJob, log: MemoryLog, last: int | None = None) -> None:
    """Write an all-zero model after every epoch of the first horizon of a learning job."""
    learning = job.protocol_entry.learning
    if learning is None:
        return
    model = np.zeros(learning.numbers(job.law))
    for epoch in range(1, (last or job.epochs.count) + 1):
        record = ModelRecord(job.deployment, epoch, model)
        log.append(Append(Role.MODEL, 0, record.to_bytes()))
