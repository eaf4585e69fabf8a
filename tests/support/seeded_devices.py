"""Devices of a producer whose values, silence and coins are functions of (seed, name, epoch).

So what a producer sent can be computed again without anything that it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.randomness import seeded_generator
from tests.support import cells

_PURPOSES = {"enrol": 1, "horizon": 2, "report": 3, "values": 4, "silence": 5}
# As many of its devices are silent at an epoch, where the protocol allows for silence.
_SILENT = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """What a producer's devices report at an epoch.

    Attributes:
        epoch: of the job.
        values: words, shape (rows, width).
        counts: how often each row occurs, shape (rows,); None: once.
        contributors: devices that were present.
    """

    epoch: int
    values: NDArray[np.unsignedinteger]
    counts: NDArray[np.unsignedinteger] | None
    contributors: int

    @property
    def messages(self) -> int:
        """How many reports these are."""
        return len(self.values) if self.counts is None else int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class SeededDevices:
    """The devices of one producer.

    Attributes:
        seed: of the whole run.
        name: of the producer.
        count: of its devices.
        first_cell: where reports are cells, the cell of the first device.
        first_epoch: that the producer reports.
    """

    seed: int
    name: str
    count: int
    first_cell: int = 0
    first_epoch: int = 1

    @property
    def users(self) -> list[str]:
        """The names of the devices."""
        return [f"{self.name}{number}" for number in range(self.count)]

    def generators(self, purpose: str, number: int) -> np.random.Generator:
        """The generator of a draw, as `dpstream.pipeline.devices.producer.Generators`."""
        name = int.from_bytes(self.name.encode(), "little")
        return seeded_generator(self.seed, name, _PURPOSES[purpose], number)

    def values(self, job: DeployedJob, epoch: int) -> NDArray[np.int64]:
        """Every device's value, shape (count,): its cell, or 1 from an epoch of the horizon on."""
        if job.protocol_entry.name.endswith(cells.NAME):
            return np.arange(self.first_cell, self.first_cell + self.count)
        horizon = job.epochs.count
        # Some of them only after the horizon: they stay 0.
        begins = self.generators("values", job.epochs.horizon_of(epoch)).integers(
            1, horizon + horizon // 4 + 2, self.count
        )
        return (job.epochs.local(epoch) >= begins).astype(np.int64)

    def present(self, job: DeployedJob, epoch: int) -> NDArray[np.bool_]:
        """Who is present, shape (count,)."""
        if job.protocol_entry.name.endswith(cells.NAME):
            return np.ones(self.count, np.bool_)
        return self.generators("silence", epoch).random(self.count) >= _SILENT

    def reports(self, job: DeployedJob, epochs: Iterable[int]) -> Iterator[Reports]:
        """What they report at the epochs that their producer closed, in increasing order."""
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
                (drawn.values, drawn.counts) if isinstance(drawn, CountedWords) else (drawn, None)
            )
            yield Reports(epoch, values, counts, int(present.sum()))

    def _enrolled(self, job: DeployedJob, epoch: int) -> Devices[Any]:
        """The devices at the first epoch of a horizon that their producer closes."""
        randomizer = job.randomizer()
        horizon = job.epochs.horizon_of(epoch)
        if horizon == job.epochs.horizon_of(self.first_epoch):
            randomizer.enrol(self.count, self.generators("enrol", 0))
            return randomizer
        generator = self.generators("horizon", horizon)
        randomizer.enrol(self.count, generator)
        if job.epochs.local(epoch) > 1:
            # Who was enrolled when the horizon began was silent at what was left out of it.
            nobody = np.zeros(self.count, np.bool_)
            randomizer.report(1, np.zeros(self.count, np.int64), nobody, generator)
        return randomizer
