"""Read the status of a job from its topics.

A `JobWatch` keeps its position in every topic, so it can be polled once a second for hours. If the
broker is unreachable, a poll raises `KafkaError` or `ClusterError`, and polling can continue. A
watch and its cluster belong to one thread.

>>> watch = JobWatch(cluster, job)              # doctest: +SKIP
>>> json_text(watch.status(now=1_700_000_000_000)) # doctest: +SKIP
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.kafka.broker_clock import steady_seconds
from dpstream.pipeline.kafka.cluster import AccessError, Cluster
from dpstream.pipeline.kafka.stored_state import StageOffsets, StoredState, contradictions
from dpstream.pipeline.kafka.stored_topics import stored_starts, topic_ids
from dpstream.pipeline.operations.dead_letter_log import DeadLetterLog, log_position
from dpstream.pipeline.operations.status.facts import (
    JobStatus,
    StageStatus,
    TopicStatus,
    WorkerStatus,
)
from dpstream.pipeline.operations.status.health_rules import find_issues, find_notes
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.operations.status.lags import ComparedClock, Lags
from dpstream.pipeline.results.sentences import headline_of
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.pipeline.stages.manifest_summaries import ManifestSummary, SummarizedDecisions
from dpstream.pipeline.stages.topic_uses import hides_messages, stages_of
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import MANIFEST_STATUSES, WindowStatus
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import decode_partial
from dpstream.topics.short_manifests import base_of
from dpstream.topics.topic_checks import wrong_clock

# The heartbeats topic is compacted; reading more records adds nothing.
_HEARTBEATS_READ = 5_000
# An estimate that a paused publisher has repeated is among the latest estimates.
_ESTIMATES_READ = 16
_HIDDEN = (
    "rejected records are not counted: they contain reports, which this login must not read; "
    "the operator can count them: 'dpstream dead-letters'"
)
# Number of latest epochs to search for the offset up to which reports are finalized.
_EPOCHS_SEEN = 1_000
# Topic settings rarely change.
_SETTINGS_SECONDS = 60.0


def gather_status(
    cluster: Cluster, job: DeployedJob, now: int, phase: Phase = Phase.RUNNING
) -> JobStatus:
    return JobWatch(cluster, job).status(now, phase)


class JobWatch:
    """Poll the status of a deployed job; a new deployment needs a new watch."""

    def __init__(
        self, cluster: Cluster, job: DeployedJob, heartbeats: int = _HEARTBEATS_READ
    ) -> None:
        self._heartbeats_read = heartbeats
        self._cluster = cluster
        self._job = job
        self._counts: dict[str, int] = {}
        self._positions: dict[Role, int] = {}
        self._lags = Lags(cluster, job)
        self._estimates = FirstEstimates(job)
        self._published: EstimateRecord | None = None
        self._headline = ""
        self._added_up: dict[str, int] = {}
        sharers = dict(zip(SHARERS, SUMS, strict=True)) if job.shared else {}
        self._partials = {**sharers, "aggregate": Role.PARTIALS}
        self._heartbeats = Heartbeats(job)
        self._clock = ComparedClock()
        self._settings_read = float("-inf")
        self._other_clocks: tuple[str, ...] = ()
        self._stored_state = StoredState()
        self._offsets: dict[str, StageOffsets] = {}
        self._dead_letters = DeadLetterLog(cluster, job)
        self._hidden = False
        self._rejected: list[tuple[tuple[str, int, int], str]] = []
        self._registry = ProducerRegistry(job)
        self._decided = SummarizedDecisions(job)
        self._summary: ManifestSummary | None = None
        self._missing: tuple[tuple[int, int], tuple[str, ...]] = (-1, -1), ()

    def status(self, now: int, phase: Phase = Phase.RUNNING) -> JobStatus:
        """Return the status and issues of the job at `now`, in milliseconds since 1970.

        `now` is corrected if this machine's clock is known to differ from the broker's.
        """
        self._counts = self._cluster.partition_counts()
        self._see_settings()
        latest = self._heartbeats.newest
        self._catch_up()
        newest = self._heartbeats.newest
        if self._job.topic(Role.STATUS) not in self._other_clocks:
            self._clock.compare(now, None if newest == latest else newest)
        now = self._clock.broker_time(now)
        job, published = self._job, self._published
        workers = sorted(
            self._heartbeats.workers(now), key=lambda worker: (not worker.up, worker.worker)
        )
        letters, known = self._dead_letters, self._decided
        settled = letters.redriven | letters.discarded
        rejected = Counter(reason for place, reason in self._rejected if place not in settled)
        stages = tuple(self._stage(stage, workers, now) for stage in stages_of(job))
        added_up = max(self._added_up.values(), default=None)
        stored = replace(
            self._stored_state,
            stages=self._offsets,
            decided=self._decisions.decided.highest,
            aggregated=added_up,
            published=None if published is None else published.epoch,
        )
        status = JobStatus(
            job=job.name,
            deployment=job.deployment.hex(),
            deployed_at=job.deployed_at,
            last_epoch=job.last_epoch,
            published=published,
            stages=stages,
            dead_letters=dict(sorted(rejected.items())),
            position="" if published is None else job.position_of(published.epoch),
            headline=self._headline,
            assumption=None if job.change_limit is None else str(job.change_limit),
            rolling=None if job.guarantee.rolling is None else str(job.guarantee.rolling),
            phase=phase,
            replay_of=None if job.replay_of is None else job.replay_of.job,
            windows={f.value: known.windows[f.value] for f in MANIFEST_STATUSES if known.counted},
            producers=len(self._registry) if job.devices is None else None,
            missing_producers=self._missing_producers(),
            redriven=len(letters.redriven),
            discarded=len(letters.discarded - letters.redriven),
            suppressed=self._count_suppressed(),
            topics=tuple(self._changed_topics()),
            other_clocks=self._other_clocks,
            contradictions=tuple(contradictions(job, stored)),
            clock_ahead=self._clock.ahead,
            collectors=tuple(
                sorted(
                    self._heartbeats.collectors(now),
                    key=lambda collector: (not collector.up, collector.collector),
                )
            ),
        )
        return replace(
            status,
            issues=tuple(find_issues(job, status)),
            notes=(*find_notes(job, status), *([_HIDDEN] if self._hidden else [])),
        )

    def _catch_up(self) -> None:
        for record in self._new(Role.STATUS, at_most=self._heartbeats_read):
            self._heartbeats.apply(record)
        # Read before the manifests, because a published epoch was finalized earlier.
        for record in self._new(Role.ESTIMATES, at_most=_ESTIMATES_READ):
            self._note_estimate(record.value)
        for stage, role in self._partials.items():
            for record in self._new(role, at_most=1, skip=True):
                self._note_partial(stage, record.value)
        for record in self._new(Role.PRODUCERS):
            self._registry.apply(record)
        self._pass_over_manifests()
        self._decided.apply_all(self._new(Role.MANIFESTS))
        if self._exists(Role.DEAD_LETTERS) and not self._hidden:
            try:
                for letter in self._dead_letters.read():
                    self._rejected.append((log_position(letter), letter.reason.value))
            except AccessError:
                # Dead letters contain reports, which not every login for status is allowed to read.
                self._hidden = True

    def _new(
        self, role: Role, *, at_most: int | None = None, skip: bool = False
    ) -> Iterator[LogRecord]:
        """Yield the new records of a single-partition topic.

        The first call reads only the latest `at_most` records; with `skip`, later calls do, too.
        """
        if not self._exists(role):
            return
        topic = self._job.topic(role)
        (end, *_) = self._cluster.end_offsets(topic)
        start = self._positions.get(role)
        if start is None or skip:
            start = max(start or 0, self._job.start_offset(role), end - (at_most or end))
        for record in self._cluster.read(topic, start=start, stop=end):
            yield record
            self._positions[role] = record.offset + 1
        self._positions[role] = max(start, end)

    def _pass_over_manifests(self) -> None:
        """Skip all but the latest manifests; workers report the counts for skipped manifests."""
        known, summary = Role.MANIFESTS in self._positions, self._heartbeats.summary
        newer = summary is not None and summary != self._summary and not self._decided.counted
        if not self._exists(Role.MANIFESTS) or (known and not newer):
            return
        self._summary = summary
        topic, enough = self._job.topic(Role.MANIFESTS), self._decided.enough
        (end, *_) = self._cluster.end_offsets(topic)
        for each in (summary,) if known or summary is None else (summary, None):
            stop = end if each is None else each.offset
            if stop - enough <= self._job.start_offset(Role.MANIFESTS):
                continue
            records = list(self._cluster.read(topic, start=stop - enough, stop=stop))
            if self._decided.begin(records, self._named_before(topic, records), each):
                self._positions[Role.MANIFESTS] = stop
                return

    def _named_before(self, topic: str, records: list[LogRecord]) -> list[LogRecord]:
        named, start = set[int](), self._job.start_offset(Role.MANIFESTS)
        for each in records:
            with suppress(CodecError):
                base = base_of(each.value)
                if base is not None and start <= base < records[0].offset:
                    named.add(base)
        return [m for at in sorted(named) for m in self._cluster.read(topic, start=at, stop=at + 1)]

    @property
    def _decisions(self) -> DecisionLog:
        return self._decided.log

    def _note_partial(self, stage: str, value: bytes) -> None:
        try:
            part = decode_partial(value)
        except CodecError:
            return
        if part.deployment == self._job.deployment:
            self._added_up[stage] = max(part.epoch, self._added_up.get(stage) or 0)

    def _note_estimate(self, value: bytes) -> None:
        record = self._estimates.apply(value)
        if record is None or (self._published and record.epoch < self._published.epoch):
            return
        self._published = record
        self._headline = str(headline_of(self._job, record))

    def _missing_producers(self) -> tuple[str, ...]:
        state, _ = self._missing
        now = len(self._registry), self._positions.get(Role.MANIFESTS, 0)
        if state != now:
            following = self._decisions.decided.highest + 1
            self._missing = (
                now,
                tuple(
                    producer.name
                    for producer in self._registry
                    if producer.reports_at(following)
                    and self._decisions.missed(producer.index, producer.first_epoch, following)
                ),
            )
        return self._missing[1]

    def _count_suppressed(self) -> int:
        count, epoch = 0, self._decisions.decided.highest
        while (outcome := self._decisions.recent(epoch)) is not None:
            if outcome.window_status is WindowStatus.RELEASED:
                break
            count, epoch = count + 1, epoch - 1
        return count

    def _exists(self, role: Role) -> bool:
        return self._job.topic(role) in self._counts

    def _stage(self, stage: str, workers: list[WorkerStatus], now: int) -> StageStatus:
        role = stages_of(self._job)[stage]
        own = tuple(worker for worker in workers if worker.stage == stage)
        lag = self._lags.of(stage, role, self._counts.get(self._job.topic(role), 0), now)
        if lag.offsets is not None:
            self._offsets[stage] = lag.offsets
        hidden = hides_messages(self._job, stage)
        if hidden:
            own = tuple(replace(worker, records_per_second=None) for worker in own)
        reached = {
            "shuffle": self._decisions.decided.highest or None,
            **self._added_up,
            "publish": None if self._published is None else self._published.epoch,
        }
        return StageStatus(
            stage=stage,
            workers=own,
            lag=None if hidden or not self._exists(role) else lag.records,
            waiting=lag.seconds,
            epoch=reached.get(stage),
            deleted=tuple(each for each in lag.deleted if self._needs(stage, each)),
        )

    def _needs(self, stage: str, partition: int) -> bool:
        decided, published = self._decisions.decided.highest, self._published
        if published is None or published.epoch < decided:
            return True
        offsets = self._offsets[stage]
        if offsets.role not in self._job.route.reports:
            return False
        recent = (
            self._decisions.recent(epoch)
            for epoch in range(decided, max(0, decided - _EPOCHS_SEEN), -1)
            if self._job.topics.partition_of(epoch) == partition
        )
        cuts = [each.cut_offset for each in recent if each is not None]
        return offsets.starts[partition] > max(cuts, default=0)

    def _see_settings(self) -> None:
        moment = steady_seconds()
        if moment < self._settings_read + _SETTINGS_SECONDS:
            return
        self._settings_read = moment
        job, cluster = self._job, self._cluster
        existing = cluster.existing_topics(map(job.topic, job.start_offsets))
        self._other_clocks = tuple(
            name for name, topic in existing.items() if wrong_clock(topic.configs) is not None
        )
        there = [role for role in job.start_offsets if job.topic(role) in existing]
        self._stored_state = StoredState(
            ids=topic_ids(cluster, job),
            starts=stored_starts(cluster, job, there),
            settings={role: existing[job.topic(role)].configs for role in there},
        )

    def _changed_topics(self) -> Iterator[TopicStatus]:
        for role, starts in self._job.start_offsets.items():
            name, deployed = self._job.topic(role), len(starts)
            found = self._counts.get(name, 0)
            if not found:
                # The topic is missing or hidden; if it is hidden, this raises an error.
                self._cluster.exists(name)
            if found != deployed:
                added = self._cluster.end_offsets(name)[deployed:] if found else []
                yield TopicStatus(name, found, deployed, unexpected_records=any(added))
