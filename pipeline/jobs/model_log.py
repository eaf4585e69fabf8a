"""Models published by a deployment; as with estimates, the first record for an epoch counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogCursor, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.topics.frames import CodecError
from dpstream.topics.models import ModelRecord
from dpstream.topics.names import Role


class ModelLog:
    """Read ``<job>.model`` as it grows.

    Records of other deployments and invalid models are skipped. With `keep`, the models themselves
    are stored, for `find`. `epochs` has every epoch that has produced a model.
    """

    def __init__(self, job: DeployedJob, *, keep: bool) -> None:
        assert job.protocol_entry.learning is not None
        self.epochs: set[int] = set()
        self._job = job
        self._numbers = job.protocol_entry.learning.numbers(job.law)
        self._keep = keep
        self._models: dict[int, NDArray[np.float64]] = {}
        self.log: LogCursor = job.cursor(Role.MODEL, lambda record: self._apply(record.value))
        self._registry = ProducerRegistry(job)
        self._producers: LogCursor = job.cursor(Role.PRODUCERS, self._registry.apply)

    def find(self, epoch: int) -> Steps[NDArray[np.float64] | None]:
        """Return the model that devices use at an epoch, or None if it is not published yet.

        The model is float64, shape (numbers,). All its numbers are 0 at the first epoch of a
        horizon, and at the first epoch for which a producer has registered: no model is published
        before them. Reading stops after the batch of records that contains the model; models of
        earlier epochs are discarded.
        """
        if self._job.epochs.local(epoch) == 1:
            return np.zeros(self._numbers)
        wanted = epoch - 1
        for earlier in [each for each in self._models if each < wanted]:
            del self._models[earlier]
        if wanted not in self._models:
            yield from self.log.find_end()
            while wanted not in self._models and (yield from self.log.read_some()):
                pass
        if not self.epochs and (yield from self._is_first(epoch)):
            return np.zeros(self._numbers)
        return self._models.get(wanted)

    def _is_first(self, epoch: int) -> Steps[bool]:
        yield from self._producers.catch_up()
        return len(self._registry) > 0 and epoch <= self._registry.first_epoch

    def _apply(self, value: bytes) -> None:
        try:
            record = ModelRecord.from_bytes(value)
        except CodecError:
            return
        if record.deployment != self._job.deployment or record.model.size != self._numbers:
            return
        if epoch_problem(self._job, record.epoch) is None and record.epoch not in self.epochs:
            self.epochs.add(record.epoch)
            if self._keep:
                self._models[record.epoch] = record.model
