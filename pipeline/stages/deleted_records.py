"""Decide whether a stage still needs records that its topic no longer has.

Kafka drops the offsets of a group after a week without members, and a restored cluster might have
older offsets. A stage then finds its offset to be below the start of its topic. Nothing is lost if
all deleted records belong to published windows.
"""

from __future__ import annotations

from dpstream.pipeline.actions import LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.attempts import read_chunk
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, own_partial_window
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.pipeline.stages.published_epochs import place_of_latest
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.names import Role


def needs_below(job: DeployedJob, role: Role, partition: int, offset: int) -> Steps[bool]:
    """Return whether deleted records, those before `offset`, might still be needed."""
    published = yield from latest_published(job)
    instance = 1 + job.route.reports.index(role) if role in job.route.reports else 1
    pending: dict[int, int] = {}
    partial_windows: dict[int, Manifest] = {}
    cut = 0

    def note(decision: Decision) -> None:
        nonlocal cut
        manifest = decision.manifest
        if job.topics.partition_of(manifest.epoch) != partition:
            return
        if manifest.window_status is WindowStatus.RELEASED and manifest.epoch > published:
            pending[manifest.epoch] = manifest.first_offset
        if instance == 1:
            cut = max(cut, manifest.cut_offset)

    def apply(record: LogRecord) -> None:
        decisions.apply(record)
        partial_window = own_partial_window(job, instance, record)
        if partial_window is not None and partial_window.epoch in decisions.decided:
            partial_windows.setdefault(partial_window.epoch, partial_window)

    decisions = DecisionLog(job, note)
    yield from job.cursor(Role.MANIFESTS, apply).catch_up()
    if role not in job.route.reports:
        return not pending.keys() <= (yield from _epochs_started(job, role, partition, offset))
    if instance > 1:
        if not pending.keys() <= partial_windows.keys():
            # The first offset of a released epoch's reports is not known yet.
            return True
        own = [
            partial_window
            for partial_window in partial_windows.values()
            if job.topics.partition_of(partial_window.epoch) == partition
        ]
        cut = max((partial_window.cut_offset for partial_window in own), default=0)
        pending = {epoch: partial_windows[epoch].first_offset for epoch in pending}
    # Records beyond the last window belong to undecided epochs.
    return offset > cut or any(first < offset for first in pending.values())


def latest_published(job: DeployedJob) -> Steps[int]:
    place = yield from place_of_latest(job, lambda latest: latest)
    published = FirstEstimates(job, place.before)
    log = job.cursor(Role.ESTIMATES, lambda record: published.apply(record.value))
    log.position = place.offset
    yield from log.catch_up()
    epochs = published.epochs
    return epochs.first_missing(epochs.lowest or 1) - 1


def _epochs_started(job: DeployedJob, role: Role, partition: int, start: int) -> Steps[set[int]]:
    begun: set[int] = set()

    def take(record: LogRecord) -> None:
        chunk = read_chunk(job, partition, record.value)
        if isinstance(chunk, Chunk) and chunk.index == 0:
            begun.add(chunk.epoch)

    yield from scan(role, partition, start, (yield from end_offset(role, partition)), take)
    return begun
