"""Count the devices of a job by the tags in ``<job>.devices``; a tag's first enrollment counts."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.topics.frames import CodecError
from dpstream.topics.loose_batches import decode_enrollments

_WAITING_LIMIT: Final = 1 << 17
_DIVISIONS: Final = 256
_DIVISION_SHIFT: Final = np.uint64(64 - 8)


class Population:
    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._horizons: dict[int, _Enrolled] = {}
        self._first_horizon = 0

    def apply(self, record: LogRecord) -> None:
        try:
            enrollments = decode_enrollments(record.value)
        except CodecError:
            return
        job, epoch = self._job, enrollments.epoch
        if (enrollments.deployment, enrollments.fingerprint) != (job.deployment, job.fingerprint):
            return
        horizon = job.epochs.horizon_of(epoch)
        if epoch_problem(job, epoch) is not None or horizon < self._first_horizon:
            return
        self._horizons.setdefault(horizon, _Enrolled()).add(epoch, enrollments.tags)

    def count(self, epoch: int) -> int:
        """Return the number of devices enrolled in an epoch's horizon up to that epoch."""
        enrolled = self._horizons.get(self._job.epochs.horizon_of(epoch))
        return 0 if enrolled is None else enrolled.count(epoch)

    def forget_before(self, epoch: int) -> None:
        self._first_horizon = max(self._first_horizon, self._job.epochs.horizon_of(epoch))
        for horizon in [each for each in self._horizons if each < self._first_horizon]:
            del self._horizons[horizon]


class _Enrolled:
    """Tags in one horizon, 8 bytes each: divided by their first bits, and sorted."""

    def __init__(self) -> None:
        empty = np.empty(0, np.uint64)
        self._divisions: list[NDArray[np.uint64]] = [empty] * _DIVISIONS
        self._waiting: list[tuple[int, NDArray[np.uint64]]] = []
        self._waiting_tags = 0
        self._new_at: Counter[int] = Counter()

    def add(self, epoch: int, tags: NDArray[np.uint64]) -> None:
        self._waiting.append((epoch, tags))
        self._waiting_tags += len(tags)
        if self._waiting_tags >= _WAITING_LIMIT:
            self._merge()

    def count(self, epoch: int) -> int:
        self._merge()
        return sum(new for first, new in self._new_at.items() if first <= epoch)

    def _merge(self) -> None:
        if not self._waiting:
            return
        epochs = np.repeat(
            np.array([epoch for epoch, _ in self._waiting], np.int64),
            [len(tags) for _, tags in self._waiting],
        )
        tags, first = np.unique(
            np.concatenate([tags for _, tags in self._waiting]), return_index=True
        )
        epochs = epochs[first]
        bounds = np.searchsorted(tags, np.arange(1, _DIVISIONS, dtype=np.uint64) << _DIVISION_SHIFT)
        starts, stops = [0, *bounds.tolist()], [*bounds.tolist(), len(tags)]
        for division, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if start < stop:
                new = self._merge_division(division, tags[start:stop])
                self._new_at.update(epochs[start:stop][new].tolist())
        self._waiting, self._waiting_tags = [], 0

    def _merge_division(self, division: int, tags: NDArray[np.uint64]) -> NDArray[np.bool_]:
        stored = self._divisions[division]
        places = np.searchsorted(stored, tags)
        known = np.zeros(len(tags), np.bool_)
        inside = places < len(stored)
        known[inside] = stored[places[inside]] == tags[inside]
        self._divisions[division] = np.insert(stored, places[~known], tags[~known])
        return ~known
