"""Check the stored data of a deployment for contradictions.

In consistent data, every published epoch is finalized, and every finalized epoch was sent. A topic
in `KEPT` starts at the deployment's first offset, and no topic was recreated after the deployment.
Workers and producers check this at startup, and `dpstream status` at every poll.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.workers import Committed
from dpstream.topics.names import SUMS, Role
from dpstream.topics.topic_checks import changed_settings


class ContradictionError(DpstreamError):
    pass


@dataclass(frozen=True, slots=True)
class StageOffsets:
    role: Role
    starts: Sequence[int]
    committed: Sequence[Committed | None]
    ends: Sequence[int]


@dataclass(frozen=True, slots=True)
class StoredState:
    """Stored data of a deployment; unknown values are omitted and not compared.

    `ids` are Kafka's topic IDs. `decided`, `aggregated` and `published` are the latest epochs with
    a manifest, a partial and an estimate. `starts` are the first offsets of the topics in `KEPT`.
    """

    ids: Mapping[Role, str] = field(default_factory=dict)
    decided: int | None = None
    aggregated: int | None = None
    published: int | None = None
    starts: Mapping[Role, int] = field(default_factory=dict)
    settings: Mapping[Role, Mapping[str, str]] = field(default_factory=dict)
    stages: Mapping[str, StageOffsets] = field(default_factory=dict)


KEPT = frozenset(
    {
        Role.MANIFESTS,
        *SUMS,
        Role.PARTIALS,
        Role.ESTIMATES,
        Role.PRODUCERS,
        Role.DEVICES,
    }
)
"""Topics whose records must not be deleted."""


def restart(job: str) -> str:
    return f"To start over: 'dpstream undeploy {job} --delete-topics', then deploy again"


def records_lost(job: str) -> str:
    return (
        "the brokers lost records or store an older copy (temporary if a broker is down): "
        f"restore the newer copy. {restart(job)}"
    )


def recreated(job: str, topic: str) -> str:
    return f"topic {topic} was deleted and recreated; its data is lost. {restart(job)}"


def contradictions(job: DeployedJob, stored: StoredState) -> Iterator[str]:
    lost = set()
    for role, deployed in job.topic_ids.items():
        if stored.ids.get(role, deployed) != deployed:
            lost.add(role)
            yield recreated(job.name, job.topic(role))
    for role, start in stored.starts.items():
        if start > job.start_offset(role) and role not in lost:
            lost.add(role)
            yield (
                f"topic {job.topic(role)}, which must keep all records, starts at offset "
                f"{start} instead of {job.start_offset(role)}: the records in between "
                f"were deleted by retention or another program. {restart(job.name)}"
            )
    if Role.MANIFESTS not in lost:
        yield from _undecided(job, stored)
    wanted = job.topic_settings()
    for role, settings in stored.settings.items():
        yield from changed_settings(wanted[role], settings)
    for stage, offsets in stored.stages.items():
        yield from _offset_contradictions(job, stage, offsets)


def _undecided(job: DeployedJob, stored: StoredState) -> Iterator[str]:
    for done, latest in (("published", stored.published), ("aggregated", stored.aggregated)):
        if stored.decided is not None and latest is not None and latest > stored.decided:
            yield (
                f"epoch {latest} is {done}, but no epoch after {stored.decided} is finalized, so "
                f"epochs would be finalized a second time. Topic {job.topic(Role.MANIFESTS)}: "
                f"{records_lost(job.name)}"
            )
            return


def _offset_contradictions(job: DeployedJob, stage: str, offsets: StageOffsets) -> Iterator[str]:
    beyond, set_forward = [], []
    found = zip(offsets.starts, offsets.committed, offsets.ends, strict=True)
    for partition, (start, committed, end) in enumerate(found):
        if committed is not None and committed.offset > end:
            beyond.append(f"partition {partition}: offset {committed.offset}, end offset {end}")
        elif committed is not None and not committed.own and committed.offset > start:
            set_forward.append(
                f"partition {partition}: offset {committed.offset}, start offset {start}"
            )
    topic = job.topic(offsets.role)
    if beyond:
        yield (
            f"stage {stage} has read beyond the end of {topic} ({'; '.join(beyond)}): "
            f"{records_lost(job.name)}"
        )
    if set_forward:
        yield (
            f"another program advanced the offsets of stage {stage} in {topic} "
            f"({'; '.join(set_forward)}); records below them may be unprocessed. To read from the "
            f"start of the topic: 'dpstream run {stage} {job.name}'"
        )


def check(job: DeployedJob, stored: StoredState) -> None:
    found = list(contradictions(job, stored))
    if found:
        raise ContradictionError("; ".join(found))
