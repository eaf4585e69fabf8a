"""Windows in producer jobs: producers register, and end every epoch with a punctuation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_source import WindowSource
from dpstream.pipeline.stages.window_writer import ProducerWindows
from dpstream.pipeline.stages.windows import Window, public_size
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.names import Role
from dpstream.topics.records import Reason

_SECONDS_PER_PRODUCER: Final = 1e-4
"""Seconds per producer between two time checks.

Without a calendar, a check visits all producers for every open window. With 1,000 producers, there
are at most ten checks per second.
"""


class ProducerSource(WindowSource[Window, Batch | Punctuation]):
    _registry: ProducerRegistry
    _timeline: Timeline
    _decision: ShuffleDecision

    def __init__(self, job: DeployedJob, admission: Admission) -> None:
        self._job = job
        self._hides_messages = job.counts_devices
        self._admission = admission

    def begin(
        self, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> ShuffleDecision:
        self._registry, self._timeline = registry, timeline
        self._decision = ShuffleDecision(self._job, registry, log, timeline)
        return self._decision

    @property
    def seconds_of_a_time_check(self) -> float:
        return _SECONDS_PER_PRODUCER * len(self._registry)

    @property
    def known(self) -> object:
        return self._registry.version, self._timeline.version

    def admit(self, partition: int, value: bytes) -> Batch | Punctuation | Rejection:
        return self._admission.admit(partition, value)

    def new_window(self, epoch: int, now: float, multiset: Callable[[], MessageMultiset]) -> Window:
        return Window(epoch, now, multiset)

    def windows_again(
        self, registry: ProducerRegistry, multiset: Callable[[], MessageMultiset]
    ) -> ProducerWindows:
        return ProducerWindows(self._job, self._admission, registry, multiset, Role.REPORTS)

    def add(self, window: Window, record: Batch | Punctuation) -> Mapping[str, int]:
        if window.add(record):
            return {"reports": self.size(record)}
        return {} if self._hides_messages else {"duplicates": 1}

    def may_complete(self, window: Window, record: Batch | Punctuation) -> bool:
        return window.complete(record.enrollment) is not None

    def size(self, record: Batch | Punctuation) -> int:
        return public_size(record, hides_messages=self._hides_messages)

    def arrived(self, window: Window) -> Mapping[str, int]:
        messages = {} if self._hides_messages else {"reports": window.messages}
        return {**messages, "devices": window.contributors}

    def awaited(self, window: Window) -> Iterator[str]:
        return (producer.name for producer in self._decision.missing(window))

    def knows_sender(self, record: Batch | Punctuation) -> bool:
        return self._registry.find(record.enrollment) is not None

    def rejection(self, record: Batch | Punctuation) -> Rejection | None:
        producer = self._registry.find(record.enrollment)
        if producer is None:
            return Rejection(
                Reason.ENROLLMENT,
                "no producer is registered under this enrollment id, or its name was already taken",
            )
        if not producer.reports_at(record.epoch):
            return Rejection(
                Reason.ENROLLMENT,
                f"the producer is registered from epoch {producer.first_epoch} to "
                f"{producer.last_epoch or 'the end'}, but this is epoch {record.epoch}",
            )
        return None

    def ahead_of_time(self, record: Batch | Punctuation, problem: str) -> Rejection:
        producer = self._registry.find(record.enrollment)
        assert producer is not None
        self._timeline.note_rejection(producer.enrollment, record.epoch)
        return Rejection(Reason.EPOCH, f"producer {producer.name} is ahead of time: {problem}")

    def note(self, record: Batch | Punctuation) -> None:
        if isinstance(record, Punctuation):
            self._timeline.note_punctuation(record.enrollment, record.epoch)
