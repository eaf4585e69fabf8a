"""What is known of a running job, from the records it writes. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import OUTSIDE, Estimate
from dpstream.pipeline.devices.truths import Truths
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role

_RATE_WINDOWS = 10
"""The reports of so many windows, over the time between them, are the present rate."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published epoch, beside the truth.

    Attributes:
        record: what was published.
        truths: int64, how many users have the value 1, shape (1,), or each of the items that were
            estimated, shape (items,); never published, known from the input alone. None where the
            input cannot say what is estimated.
        reports: in the epoch's window; None if it was not released or has not been seen.
        rate: reports per second, over the last windows; None at the beginning.
        domain: of the job.
    """

    record: EstimateRecord
    truths: NDArray[np.int64] | None
    reports: int | None
    rate: float | None
    domain: ValueDomain = BOOLEAN

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.record.epoch

    @property
    def estimate(self) -> Estimate:
        """The estimate, or that of the item with the largest one; None in every field if none."""
        return self.record.summary

    @property
    def headline(self) -> Headline:
        """The epoch in one number, beside the truth: computed at every use."""
        return kind_of(self.domain).headline(self.domain, self.record, self.truths)

    @property
    def truth(self) -> float | None:
        """What `headline` is about."""
        return self.headline.truth

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Values, lows and highs of all estimates, shape (3, counts); counts may be 0."""
        estimate = self.record.estimate
        return np.zeros((3, 0)) if estimate is None else estimate.intervals

    @property
    def notes(self) -> list[str]:
        """What a reader has to know: the fate of a window that was not released, flags."""
        name = self.headline.name if kind_of(self.domain).in_one.selects else ""
        fate = [] if self.record.fate is Fate.RELEASED else [self.record.fate.value]
        # Numbers beside it are cut, so `outside` would be taken for a truth outside the interval.
        flags = [flag for flag in self.estimate.flags if flag != OUTSIDE]
        return [*fate, *([f"{name}, the largest"] if name else []), *flags]


@dataclass(slots=True)
class WindowSizes:
    """How many reports each released window holds: those of its first complete writing.

    Of one by each shuffle instance, where there are several.
    """

    deployment: bytes
    instances: int = 1
    reports: dict[int, int] = field(default_factory=dict)
    _chunks: dict[tuple[int, bytes], dict[int, int]] = field(default_factory=dict)
    _parts: dict[int, dict[int, int]] = field(default_factory=dict)

    def apply(self, value: bytes) -> None:
        """Take in a record of the shuffled topic."""
        try:
            chunk = decode_chunk(value)
        except CodecError:
            return
        if chunk.deployment != self.deployment or chunk.epoch in self.reports:
            return
        chunks = self._chunks.setdefault((chunk.epoch, chunk.attempt), {})
        chunks[chunk.index] = chunk.words.messages
        if len(chunks) < chunk.total:
            return
        parts = self._parts.setdefault(chunk.epoch, {})
        parts.setdefault(chunk.instance, sum(chunks.values()))
        if len(parts) == self.instances:
            self.reports[chunk.epoch] = sum(self._parts.pop(chunk.epoch).values())
            for key in [key for key in self._chunks if key[0] == chunk.epoch]:
                del self._chunks[key]


class Progress:
    """A deployment, as far as it has come.

    Args:
        job: the deployed job.
        truths: of its input.
    """

    def __init__(self, job: DeployedJob, truths: Truths) -> None:
        self.job = job
        self.records: list[EstimateRecord] = []
        self.heartbeats: dict[str, Mapping[str, Any]] = {}
        """The last heartbeat of each stage."""
        self._truths = truths
        self.last_epoch = min(truths.last_epoch, job.last_epoch or truths.last_epoch)
        """Of the run: a job that renews goes on, its input does not."""
        self._known: list[NDArray[np.int64] | None] = []
        """The truth about each of the records."""
        self._first = FirstEstimates(job)
        self._sizes = WindowSizes(job.deployment, job.window_parts)
        self._words_are_reports = job.stage_sum is None and not job.shared

    @property
    def complete(self) -> bool:
        """Whether the last epoch is published, and every window known that was released."""
        if not self.records or self.records[-1].epoch < self.last_epoch:
            return False
        released = {record.epoch for record in self.records if record.fate is Fate.RELEASED}
        return released <= self._sizes.reports.keys()

    @property
    def reports(self) -> int:
        """Reports in all windows released so far."""
        if self._words_are_reports:
            return sum(self._sizes.reports.values())
        return sum(self._reports(record) or 0 for record in self.records)

    def apply(self, role: Role, value: bytes) -> None:
        """Take in a record of one of the topics; others than those we know are passed over."""
        match role:
            case Role.ESTIMATES:
                record = self._first.apply(value)
                if record is not None:
                    self.records.append(record)
                    self._known.append(self._truths.of(record.epoch, record.estimate))
            case Role.SHUFFLED:
                self._sizes.apply(value)
            case Role.STATUS:
                self._hear(value)

    def rows(self, last: int | None = None) -> tuple[Row, ...]:
        """The published epochs in order, or the `last` of them."""
        first = 0 if last is None else max(0, len(self.records) - last)
        return tuple(
            Row(
                record,
                self._known[position],
                self._reports(record),
                self._rate(self.records[max(0, position - _RATE_WINDOWS) : position + 1]),
                self.job.domain,
            )
            for position, record in enumerate(self.records[first:], first)
        )

    def _reports(self, record: EstimateRecord) -> int | None:
        if record.epoch not in self._sizes.reports or self._words_are_reports:
            return self._sizes.reports.get(record.epoch)
        return record.contributors

    def _rate(self, records: Sequence[EstimateRecord]) -> float | None:
        # Neighbouring epochs lie in different partitions and may be closed in any order.
        closed = [record.closed_at for record in records]
        milliseconds = max(closed) - min(closed)
        if milliseconds == 0:
            return None
        reports = sum(self._reports(record) or 0 for record in records[1:])
        return 1000 * reports / milliseconds

    def _hear(self, value: bytes) -> None:
        try:
            heartbeat = json.loads(value)
            stage, time = str(heartbeat["stage"]), int(heartbeat["time"])
        except (ValueError, KeyError, TypeError):
            return
        # The topic keeps the last words of earlier deployments.
        if time >= self.job.deployed_at:
            self.heartbeats[stage] = heartbeat
