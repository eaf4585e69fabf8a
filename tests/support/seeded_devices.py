"""Devices whose values, absence and randomness are functions of seed, name and epoch.

So a producer's records can be recomputed without its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.randomness import seeded_generator
from tests.support import cells

_PURPOSES = {"enroll": 1, "horizon": 2, "report": 3, "values": 4, "silence": 5}
# Fraction of devices absent at an epoch, if the protocol allows absence.
_ABSENT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """Reports of a producer's devices at an epoch.

    `values` has shape (rows, width); `counts` has the multiplicity of each row, or is None.
    """

    epoch: int
    values: NDArray[np.unsignedinteger]
    counts: NDArray[np.unsignedinteger] | None
    contributors: int

    @property
    def messages(self) -> int:
        return len(self.values) if self.counts is None else int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class SeededDevices:
    """Devices of a producer, with cells from `first_cell` on and reports from `first_epoch` on."""

    seed: int
    name: str
    count: int
    first_cell: int = 0
    first_epoch: int = 1

    @property
    def users(self) -> list[str]:
        return [f"{self.name}{number}" for number in range(self.count)]

    def generators(self, purpose: str, number: int) -> np.random.Generator:
        """Return a draw's generator, like `dpstream.pipeline.devices.producer.Generators`."""
        name = int.from_bytes(self.name.encode(), "little")
        return seeded_generator(self.seed, name, _PURPOSES[purpose], number)

    def values(self, job: DeployedJob, epoch: int) -> NDArray[np.int64]:
        """Return every device's value, shape (count,): the cell, or 1 from a random epoch on."""
        if job.protocol_entry.name.endswith(cells.NAME):
            return np.arange(self.first_cell, self.first_cell + self.count)
        horizon = job.epochs.count
        # Some values change only after the horizon, and stay 0.
        begins = self.generators("values", job.epochs.horizon_of(epoch)).integers(
            1, horizon + horizon // 4 + 2, self.count
        )
        return (job.epochs.local(epoch) >= begins).astype(np.int64)

    def present(self, job: DeployedJob, epoch: int) -> NDArray[np.bool_]:
        """Return whether each device is present, shape (count,)."""
        if job.protocol_entry.name.endswith(cells.NAME):
            return np.ones(self.count, np.bool_)
        return self.generators("silence", epoch).random(self.count) >= _ABSENT

    def reports(self, job: DeployedJob, epochs: Iterable[int]) -> Iterator[Reports]:
        horizon: int | None = None
        for epoch in epochs:
            if job.epochs.horizon_of(epoch) != horizon:
                horizon = job.epochs.horizon_of(epoch)
                randomizer = self._enrolled(job, epoch)
            present = self.present(job, epoch)
            drawn = randomizer.report(
                job.epochs.local(epoch),
                self.values(job, epoch),
                None if present.all() else present,
                self.generators("report", epoch),
            )
            values, counts = (
                (drawn.values, drawn.counts)
                if isinstance(drawn, CountedMessages)
                else (drawn, None)
            )
            yield Reports(epoch, values, counts, int(present.sum()))

    def _enrolled(self, job: DeployedJob, epoch: int) -> Devices[Any]:
        """Return devices enrolled at the first epoch of a horizon that their producer closes."""
        randomizer = job.randomizer()
        horizon = job.epochs.horizon_of(epoch)
        if horizon == job.epochs.horizon_of(self.first_epoch):
            randomizer.enroll(self.count, self.generators("enroll", 0))
            return randomizer
        generator = self.generators("horizon", horizon)
        randomizer.enroll(self.count, generator)
        if job.epochs.local(epoch) > 1:
            # Devices enrolled at the start of the horizon are absent at skipped epochs.
            none_present = np.zeros(self.count, np.bool_)
            randomizer.report(1, np.zeros(self.count, np.int64), none_present, generator)
        return randomizer
