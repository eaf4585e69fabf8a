"""What an attacker sees, drawn by the installed code: reports, released windows, what is published.

Everybody but one person holds nothing, or the first value; that person's values are the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.hockey_stick import Reports, Sight
from pipeline.conformance.cases import Stream
from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.simulation.memory import MemoryDriver, MemoryLog
from pipeline.simulation.simulate import SimulatedCluster
from pipeline.stages.estimate_records import EstimateRecord
from randomizers.counted_words import written_out
from topics.chunks import decode_chunk
from topics.names import Role

MOST_EPOCHS = 64
"""Of a longer horizon the first ones are drawn: what is true of all of them is true of these."""
# Windows that are drawn with the same topics, where epochs stand alone.
_AT_ONCE = 200


class Target(Protocol):
    """Something that can be seen."""

    @property
    def what(self) -> str:
        """It, in words."""
        ...

    @property
    def epochs(self) -> int:
        """Of a stream."""
        ...

    def sights(self, stream: Stream, trials: int, coins: np.random.Generator) -> list[Sight]:
        """What is seen of so many people with this stream, each in a trial of its own."""
        ...


@dataclass(frozen=True, slots=True)
class History:
    """All reports of one device."""

    job: DeployedJob

    @property
    def epochs(self) -> int:
        """Of a stream."""
        return min(self.job.epochs.count, MOST_EPOCHS)

    @property
    def what(self) -> str:
        """It, in words."""
        return f"all reports of a device, {_epochs(self.epochs)}"

    def sights(self, stream: Stream, trials: int, coins: np.random.Generator) -> list[Sight]:
        """What devices send, each alone."""
        if self.epochs == 1:
            drawn = self._at_once(stream, trials, coins)
            if drawn is not None:
                return drawn
        return [self._alone(stream, coins) for _ in range(trials)]

    def _alone(self, stream: Stream, coins: np.random.Generator) -> Sight:
        devices = self.job.randomizer()
        devices.enrol(1, coins)
        return tuple(
            _reports(written_out(devices.report(epoch, np.array([value]), None, coins)))
            for epoch, value in enumerate(stream, 1)
        )

    def _at_once(
        self, stream: Stream, trials: int, coins: np.random.Generator
    ) -> list[Sight] | None:
        """The same of many devices with one report each, which may stand in any order.

        None where they send more or fewer. Where room is not kept for a secret number of messages,
        it is the same for all devices of a horizon of one epoch.
        """
        if self.job.epochs.count > 1 or self.job.protocol_entry.capacity is not None:
            return None
        devices = self.job.randomizer()
        devices.enrol(trials, coins)
        values = np.array([stream[0]] * trials)
        words = written_out(devices.report(1, values, None, coins)).tolist()
        return [(((tuple(word), 1),),) for word in words] if len(words) == trials else None


@dataclass(frozen=True, slots=True)
class Windows:
    """Released windows of the fewest devices, or what is published of them.

    Attributes:
        published: estimates in place of words.
    """

    job: DeployedJob
    published: bool = False

    @property
    def epochs(self) -> int:
        """Of a stream."""
        return 1 if self._alone else min(self.job.epochs.count, MOST_EPOCHS)

    @property
    def _alone(self) -> bool:
        """Whether the windows of a job are trials that do not depend on each other."""
        devices = self.job.randomizer()
        return (
            self.job.protocol_entry.per_epoch
            and self.job.protocol_entry.learning is None
            and devices.state_arrays().keys() == {"population"}
        )

    @property
    def what(self) -> str:
        """It, in words."""
        seen = "what is published" if self.published else "released windows"
        people = f"{self.job.shuffle.minimum:,} devices"
        return f"{seen} of {people}, {_epochs(self.epochs)}"

    def sights(self, stream: Stream, trials: int, coins: np.random.Generator) -> list[Sight]:
        """What the stages release, or publish."""
        if not self._alone:
            return [self._run(stream, coins) for _ in range(trials)]
        found: list[Sight] = []
        while len(found) < trials:
            epochs = min(trials - len(found), _AT_ONCE, self.job.epochs.count)
            found += ((seen,) for seen in self._run(stream * epochs, coins))
        return found

    def _run(self, stream: Stream, coins: np.random.Generator) -> Sight:
        def generators(purpose: str, number: int) -> np.random.Generator:
            return coins

        cluster = SimulatedCluster(self.job, generators)
        producer = Producer(
            cluster.job,
            None,
            name="attacked",
            transport=MemoryDriver(cluster.log),
            generators=generators,
            identifiers=lambda: coins.bytes(16),
        )
        users = max(self.job.shuffle.minimum, 1)
        producer.enrol([str(user) for user in range(users)])
        nothing = _nothing(self.job)
        for epoch, value in enumerate(stream, 1):
            values = np.array([value, *[nothing] * (users - 1)])
            producer.report_all(epoch, values)
            producer.close(epoch)
            cluster.settle()
        producer.shut()
        if self.published:
            return tuple(_published(cluster.new_estimates(), len(stream)))
        return _released(cluster.log, cluster.job, len(stream))


def _nothing(job: DeployedJob) -> Any:
    domain = job.domain
    if domain.columns is not None:
        return (0,) * domain.columns
    return domain.initial if domain.slots is None else (0,) * domain.slots


def _released(log: MemoryLog, job: DeployedJob, epochs: int) -> Sight:
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {
        epoch: [] for epoch in range(1, epochs + 1)
    }
    for partition in range(len(job.start_offsets[Role.SHUFFLED])):
        for value in log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            counts = chunk.words.counts
            times = np.ones(len(chunk.words.values), np.int64) if counts is None else counts
            rows = map(tuple, chunk.words.values.tolist())
            found[chunk.epoch] += zip(rows, times.tolist(), strict=True)
    return tuple(tuple(reports) for reports in found.values())


def _published(records: list[EstimateRecord], epochs: int) -> Iterator[Reports]:
    """Every number published, one after the other, to a thousandth."""
    for record in records[:epochs]:
        if record.estimate is not None:
            for value in np.atleast_1d(record.estimate.intervals[0]).tolist():
                yield (((round(1000 * value),), 1),)


def _reports(words: NDArray[np.unsignedinteger]) -> Reports:
    """In an order of their own: nobody sees another."""
    rows, counts = np.unique(words, axis=0, return_counts=True)
    return tuple(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
