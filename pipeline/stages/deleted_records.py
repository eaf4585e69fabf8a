"""Decide whether a stage still needs records that its topic no longer holds.

Kafka forgets the offsets of a group after a week without members, and a restored cluster may have
older ones: a stage then finds its offset below the beginning of its topic. Nothing is lost by that
where all that was deleted belongs to windows that are published. Reads estimates and manifests, and
is asked only where offsets and topics do not fit.
"""

from __future__ import annotations

from dpstream.pipeline.actions import LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.attempts import read_chunk
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, own_part
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.pipeline.stages.published_epochs import place_of_latest
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import Fate, Manifest
from dpstream.topics.names import Role


def needs_below(job: DeployedJob, role: Role, partition: int, offset: int) -> Steps[bool]:
    """Return whether records below an offset of a partition may still be needed.

    Args:
        job: the deployed job.
        role: of a topic of raw reports, or of chunks.
        partition: of that topic.
        offset: at which it begins now.
    """
    published = yield from latest_published(job)
    instance = 1 + job.report_roles.index(role) if role in job.report_roles else 1
    pending: dict[int, int] = {}
    parts: dict[int, Manifest] = {}
    cut = 0

    def note(decision: Decision) -> None:
        nonlocal cut
        manifest = decision.manifest
        if job.topics.partition_of(manifest.epoch) != partition:
            return
        if manifest.fate is Fate.RELEASED and manifest.epoch > published:
            pending[manifest.epoch] = manifest.first_offset
        if instance == 1:
            cut = max(cut, manifest.cut_offset)

    def apply(record: LogRecord) -> None:
        decisions.apply(record)
        part = own_part(job, instance, record)
        if part is not None and part.epoch in decisions.decided:
            parts.setdefault(part.epoch, part)

    decisions = DecisionLog(job, note)
    yield from job.cursor(Role.MANIFESTS, apply).catch_up()
    if role not in job.report_roles:
        return not pending.keys() <= (yield from _epochs_begun(job, role, partition, offset))
    if instance > 1:
        if not pending.keys() <= parts.keys():
            # It is not said yet where the reports of a released epoch begin.
            return True
        own = [part for part in parts.values() if job.topics.partition_of(part.epoch) == partition]
        cut = max((part.cut_offset for part in own), default=0)
        pending = {epoch: parts[epoch].first_offset for epoch in pending}
    # Beyond the last window lie reports of epochs that are not decided.
    return offset > cut or any(first < offset for first in pending.values())


def latest_published(job: DeployedJob) -> Steps[int]:
    """Find the last epoch up to which all are published; 0 before the first."""
    place = yield from place_of_latest(job, lambda latest: latest)
    published = FirstEstimates(job, place.before)
    log = job.cursor(Role.ESTIMATES, lambda record: published.apply(record.value))
    log.position = place.offset
    yield from log.catch_up()
    epochs = published.epochs
    return epochs.first_missing(epochs.lowest or 1) - 1


def _epochs_begun(job: DeployedJob, role: Role, partition: int, start: int) -> Steps[set[int]]:
    """Epochs of which a topic of chunks still holds a first chunk."""
    begun: set[int] = set()

    def take(record: LogRecord) -> None:
        chunk = read_chunk(job, partition, record.value)
        if isinstance(chunk, Chunk) and chunk.index == 0:
            begun.add(chunk.epoch)

    yield from scan(role, partition, start, (yield from end_offset(role, partition)), take)
    return begun
