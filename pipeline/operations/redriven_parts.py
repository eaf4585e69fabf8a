"""Whether several shuffle instances each have their part of what is to be fed back to the first.

The first instance decides windows, by what it finds complete: so nothing of a drawing is fed back
to it before the other instances have all of theirs, be it in their topics or fed back before.
Whose a sealed batch is cannot be seen. There, all that was sent for an epoch has to be whole.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection
from typing import TypeAlias

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import TopicReader
from dpstream.pipeline.operations.dead_letters import Place
from dpstream.pipeline.stages.admission import Refusal
from dpstream.pipeline.stages.device_admission import RawRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.names import Role

_Drawing: TypeAlias = tuple[int, bytes, bytes]
"""An epoch, who has drawn it, and which of its drawings: ids."""


class Parts:
    """What instances have of each drawing, and of each epoch.

    Args:
        job: with several shuffle instances.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._said: defaultdict[Role, dict[_Drawing, int]] = defaultdict(dict)
        self._batches: defaultdict[tuple[Role, _Drawing | int], set[bytes]] = defaultdict(set)

    def note(self, role: Role, record: RawRecord, value: bytes) -> None:
        """An instance has a record, or is fed it."""
        if isinstance(record, Punctuation):
            self._said[role][_drawing(record)] = record.batches
        elif isinstance(record, Batch):
            self._batches[role, _drawing(record)].add(record.batch)
        else:
            self._batches[role, record.epoch].add(hashlib.sha256(value).digest())

    def note_topics(self, cluster: Cluster, refused: Collection[Place]) -> None:
        """Note what topics of raw reports hold, but for what was refused where it lies."""
        job = self._job
        for role in job.report_roles:
            admission = producer_admission(job, role=role)
            for partition in range(job.topics.partitions):
                for record in TopicReader(cluster, job, role, partition).read():
                    found = admission.addressed(partition, record.value)
                    place = job.topic(role), partition, record.offset
                    if not isinstance(found, Refusal) and place not in refused:
                        self.note(role, found, record.value)

    def has_others_of(self, record: RawRecord) -> bool:
        """Whether the other instances have all parts of what a record of the first one is of."""
        others = self._job.report_roles[1:]
        if not self._job.seals_batches:
            assert isinstance(record, Batch | Punctuation)
            drawing = _drawing(record)
            return all(
                self._said[role].get(drawing) == len(self._batches[role, drawing])
                for role in others
            )
        epoch = record.epoch
        drawn = {each for each in self._said[Role.REPORTS] if each[0] == epoch}
        for role in others:
            said = {each: n for each, n in self._said[role].items() if each[0] == epoch}
            if not drawn <= said.keys() or sum(said.values()) != len(self._batches[role, epoch]):
                return False
        return True


def _drawing(record: Batch | Punctuation) -> _Drawing:
    drawing = drawing_of(record.batch) if isinstance(record, Batch) else record.drawing
    return record.epoch, record.enrolment, drawing
