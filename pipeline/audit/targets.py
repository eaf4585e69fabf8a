"""Draw an attacker's view with the installed code: reports, released windows, or estimates.

The attacked user has the values of the stream. All other users have no value or the first value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.audit.hockey_stick import Observation, Observations, Reports
from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.devices import Devices
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.names import Role

MOST_EPOCHS = 64
"""Maximum number of epochs to draw, from the start of a horizon that the guarantee covers."""
MOST_EPOCHS_OF_WINDOWS = 8
"""Maximum number of epochs to draw through all stages, from the start of a horizon."""
# Number of epochs drawn before topics are created again.
_AT_ONCE = 400
# Number of devices run at once, whose reports are all in memory.
_TOGETHER = 20_000


class Target(Protocol):
    """Views of a job by one or more observers, all of whom see the same draws."""

    @property
    def seen(self) -> tuple[str, ...]: ...

    @property
    def epochs(self) -> int: ...

    def observations(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        """Return each observer's views of `trials` independent trials, one attacked user each."""


def draw_histories(
    devices: Devices[Any],
    stream: Stream,
    trials: int,
    randomness: np.random.Generator,
    *,
    one_each: bool,
) -> Observations | None:
    """Draw the reports, by epoch, of `trials` devices that have the same values.

    With `one_each`, each device sends one report in a single epoch. Its identity is then
    irrelevant, because there are no other reports to link. Returns one trial per device, or None if
    reports do not identify their device.
    """
    devices.enroll(trials, randomness)
    tables: list[tuple[Reports, ...]] = []
    codes = np.zeros((trials, len(stream)), np.intp)
    for index, value in enumerate(stream):
        due = np.arange(trials) if one_each and len(stream) == 1 else devices.due(index + 1)
        messages = written_out(
            devices.report(index + 1, np.array([value] * trials), None, randomness)
        )
        if due is None or len(due) != len(messages):
            return None
        distinct, which = np.unique(messages, axis=0, return_inverse=True)
        # Code 0 means no report.
        codes[due, index] = 1 + which.reshape(-1)
        tables.append(((), *(((tuple(message), 1),) for message in distinct.tolist())))
    return Observations(tuple(tables), codes)


def draw_alone(
    devices: Devices[Any], stream: Stream, randomness: np.random.Generator
) -> Observation:
    devices.enroll(1, randomness)
    return tuple(
        _reports(written_out(devices.report(epoch, np.array([value]), None, randomness)))
        for epoch, value in enumerate(stream, 1)
    )


def _reports(messages: NDArray[np.unsignedinteger]) -> Reports:
    rows, counts = np.unique(messages, axis=0, return_counts=True)
    return tuple(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    job: DeployedJob

    @property
    def epochs(self) -> int:
        return min(self.job.epochs.count, MOST_EPOCHS)

    @property
    def seen(self) -> tuple[str, ...]:
        return (f"all reports of a device, {_epochs(self.epochs)}",)

    @property
    def together(self) -> bool:
        """True if reports identify their devices, so that many devices can run together."""
        devices = self.job.randomizer()
        return self._one_each or devices.due(1) is not None

    @property
    def _one_each(self) -> bool:
        return self.job.epochs.count == 1 and self.job.protocol_entry.shuffling is None

    def observations(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        if self.together:
            parts = [
                draw_histories(
                    self.job.randomizer(), stream, count, randomness, one_each=self._one_each
                )
                for count in _chunks(trials, _TOGETHER)
            ]
            reported = [part for part in parts if part is not None]
            if len(reported) == len(parts):
                return (Observations.joined(reported),)
        found = [draw_alone(self.job.randomizer(), stream, randomness) for _ in range(trials)]
        return (Observations.of(found),)


@dataclass(frozen=True, slots=True)
class Windows:
    """Released windows with the minimum number of devices, and the published estimates.

    If epochs are independent, each trial is a window. Otherwise, each trial is a horizon of its
    own, at whose start devices and stages start again.
    """

    job: DeployedJob

    @property
    def epochs(self) -> int:
        return 1 if self._alone else min(self.job.epochs.count, MOST_EPOCHS_OF_WINDOWS)

    @property
    def _alone(self) -> bool:
        devices = self.job.randomizer()
        return self.job.protocol_entry.per_epoch and devices.state_arrays().keys() == {"population"}

    @property
    def _recurring(self) -> bool:
        """True if one run can contain several trials."""
        return self._alone or self.epochs == self.job.epochs.count

    @property
    def seen(self) -> tuple[str, ...]:
        of = f"of {self.job.shuffle.minimum:,} devices, {_epochs(self.epochs)}"
        return f"released windows {of}", f"what is published {of}"

    def observations(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        at_once = max(1, _AT_ONCE // len(stream)) if self._recurring else 1
        found = [
            each
            for count in _chunks(trials, at_once)
            for each in self._run(stream, count, randomness)
        ]
        return tuple(
            Observations.of([observations[index] for observations in found]) for index in range(2)
        )

    def _run(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> Iterator[tuple[Observation, Observation]]:
        def generators(purpose: str, number: int) -> np.random.Generator:
            return randomness

        epochs = self.job.epochs.model_copy(update={"renew": True})
        job = self.job.model_copy(update={"epochs": epochs}) if self._recurring else self.job
        cluster = SimulatedCluster(job, generators)
        producer = Producer(
            cluster.job,
            None,
            name="attacked",
            transport=MemoryDriver(cluster.log),
            generators=generators,
            identifiers=lambda: randomness.bytes(16),
        )
        users = max(self.job.shuffle.minimum, 1)
        producer.enroll([str(user) for user in range(users)])
        nothing = _nothing(self.job)
        for epoch, value in enumerate(stream * trials, 1):
            producer.report_all(epoch, np.array([value, *[nothing] * (users - 1)]))
            producer.close(epoch)
            cluster.settle()
        producer.shut()
        length = len(stream)
        released = _released(cluster.log, cluster.job, trials * length)
        published = _published(cluster.new_estimates(), trials * length)
        for start in range(0, trials * length, length):
            yield released[start : start + length], published[start : start + length]


def _chunks(count: int, most: int) -> Iterator[int]:
    return (min(most, count - start) for start in range(0, count, most))


def _nothing(job: DeployedJob) -> Any:
    domain = job.domain
    if domain.columns is not None:
        return (0,) * domain.columns
    return domain.initial if domain.slots is None else (0,) * domain.slots


def _released(log: MemoryLog, job: DeployedJob, epochs: int) -> Observation:
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


def _published(records: list[EstimateRecord], epochs: int) -> Observation:
    found: dict[int, Reports] = dict.fromkeys(range(1, epochs + 1), ())
    for record in records:
        if record.epoch in found and record.estimate is not None and record.estimate.intervals.size:
            values = np.atleast_1d(record.estimate.intervals[0]).tolist()
            found[record.epoch] = ((tuple(round(1000 * value) for value in values), 1),)
    return tuple(found.values())


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
